"""The architectures benchmark: the verdict on a family, the rules for its weights, and the list of families."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import architectures
from benchmarks.architectures import verdict_on
from benchmarks.harness.texts import DIFFERENT


def record(how: list[str], different: int = 0, **more: Any) -> dict[str, Any]:
    runs = [{"how": kind, "batch": 8, "tokens": 384, DIFFERENT: different} for kind in how]
    return {"depths": [0, 3], "active": True, "runs": runs, **more}


ALL = ["depth 0", "depth 3", "switching", "policy"]


def few_unlikely(share: float, different: int = 1) -> dict[str, Any]:
    """Return a record with differing or tied outputs and *share* more unlikely tokens than the reference's."""
    found = record(ALL, different=different, reference={"unlikely_tokens": 0.01})
    for run in found["runs"]:
        run["unlikely_tokens"] = 0.01 + share
    return found


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (record(ALL), architectures.LOSSLESS),
        (record(ALL, different=1), architectures.WRONG),
        (few_unlikely(0.0), architectures.OPEN),
        (few_unlikely(0.2), architectures.WRONG),
        (few_unlikely(0.0, different=0), architectures.LOSSLESS),
        (few_unlikely(0.2, different=0), architectures.WRONG),
        (record(ALL[:3], different=1, error="the server ended"), architectures.WRONG),
        (record(ALL[:3]), architectures.UNFINISHED),
        (record(ALL, error="the server ended"), architectures.FAILED),
        (record([], active=False, depths=[]), architectures.REFUSED),
        ({"family": "not begun"}, architectures.UNFINISHED),
    ],
)
def test_the_verdict_on_a_family(found: dict[str, Any], verdict: str) -> None:
    assert verdict_on(found) == verdict


@pytest.mark.parametrize(
    ("tokens", "share", "verdict"),
    [
        (384, 0.24, architectures.LOSSLESS),
        (384, 0.30, architectures.WRONG),
        (48, 0.30, architectures.LOSSLESS),
        (48, 0.40, architectures.WRONG),
    ],
)
def test_a_run_is_compared_with_the_reference_at_its_own_batch(tokens: int, share: float, verdict: str) -> None:
    found = record(ALL, reference={"unlikely_tokens": 0.07, "unlikely_by_batch": {"1": 0.06, "8": 0.24}})
    found["runs"][0].update(tokens=tokens, unlikely_tokens=share)
    for run in found["runs"][1:]:
        run["unlikely_tokens"] = 0.07
    assert verdict_on(found) == verdict
