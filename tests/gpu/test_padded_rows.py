"""A graph of a multi-layer draft extend only gathers existing rows, by SGLang's kernel on a device."""

from __future__ import annotations

import pytest

from tests import checks


@pytest.mark.parametrize("check", checks.named_in("layer_checks"))
def test_it_reads_rows_that_are_there(check: str) -> None:
    from tests import layer_checks

    getattr(layer_checks, check)()
