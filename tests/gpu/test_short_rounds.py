"""Rounds that are replayed without SGLang's preparation, by kernels that run on a device.

That a server which runs them drafts and answers as a stock one: test_same_drafts.py.
"""

from __future__ import annotations

import importlib

import pytest

from tests import checks

MODULES = ("commit_checks", "graph_input_checks")


@pytest.mark.parametrize(("module", "check"), [(name, check) for name in MODULES for check in checks.named_in(name)])
def test_it_holds_on_a_device(module: str, check: str) -> None:
    getattr(importlib.import_module(f"tests.{module}"), check)()
