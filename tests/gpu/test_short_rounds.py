"""Rounds replayed without SGLang's preparation, by kernels on a device.

test_same_drafts.py checks that such a server drafts and answers like a stock one.
"""

from __future__ import annotations

import pytest

from tests import checks


@pytest.mark.parametrize("check", checks.named_in("graph_input_checks"))
def test_it_holds_on_a_device(check: str) -> None:
    from tests import graph_input_checks

    getattr(graph_input_checks, check)()
