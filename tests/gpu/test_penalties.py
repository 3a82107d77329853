"""The kernels for penalties compute on a device what torch does."""

from __future__ import annotations

import pytest

from tests import checks


@pytest.mark.parametrize("check", checks.named_in("penalty_checks"))
def test_it_is_what_torch_computes(check: str) -> None:
    from tests import penalty_checks

    getattr(penalty_checks, check)()
