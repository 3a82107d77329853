"""The draft's rows of the slot table on a device."""

from __future__ import annotations

import pytest

from tests import checks


@pytest.mark.parametrize("check", checks.named_in("window_checks"))
def test_rows_are_those_of_the_requests(check: str) -> None:
    from tests import window_checks

    getattr(window_checks, check)()
