"""Prefills that include running requests, with grammars, stepped round by round."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture(scope="module")
def found(stepped: Callable[..., Any]) -> dict[str, Any]:
    return stepped("mixed_steps")


def test_grammars_hold_in_mixed_batches_in_both_loops(found: dict[str, Any]) -> None:
    first, *others = found["runs"]
    for run in (first, *others):
        assert run["aborted"] == 0 < run["mixed"]
        assert run["outputs"] == first["outputs"]


def test_sglang_alone_aborts_them(found: dict[str, Any]) -> None:
    assert found["stock"]["aborted"] > 0
