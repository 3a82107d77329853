"""Rounds that are replayed without SGLang's preparation, by kernels that run on a device.

That a server which runs them drafts and answers as a stock one: test_same_drafts.py.
"""

from __future__ import annotations

import pytest

from tests import checks


@pytest.mark.parametrize("check", checks.named_in("graph_input_checks"))
def test_it_holds_on_a_device(check: str) -> None:
    from tests import graph_input_checks

    getattr(graph_input_checks, check)()
