"""Defects of SGLang 0.5.23's adaptive speculation that no answer of a server shows; stock fails these checks."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest

from tests import checks


def both(released: str) -> Any:
    """Run a test on ours, and on stock SGLang, where it is expected to fail for the reason given."""
    fails = pytest.mark.xfail(raises=AssertionError, strict=True, reason=f"0.5.23: {released}")
    return pytest.mark.parametrize("who", ["ours", pytest.param("released", marks=fails)])


@functools.cache
def found(call: str) -> Any:
    """Return what a function of `internals` prints, in a process that has SGLang imported."""
    return checks.scripted(f"from tests.engine import internals\ninternals.{call}")


@both("the log grows with every switch, and every /server_info replays it")
def test_override_log_stays_short(who: str) -> None:
    kept = found(f"override_log({who!r})")
    assert kept["entries"] <= 5


@pytest.mark.parametrize("who", ["ours", "released"])
def test_what_the_override_log_says_stays(who: str) -> None:
    kept = found(f"override_log({who!r})")
    assert kept["read_back"]["pp_max_micro_batch_size"] == 6
    assert kept["read_back"]["speculative_num_steps"] == kept["live"]["speculative_num_steps"]


@both("a round of zero steps, arriving late, ends the probe of the next depth before its own result is in")
def test_easy_text_leaves_zero_steps_although_results_come_late(tmp_path: Path, who: str) -> None:
    slot = {"candidate_steps": [0, 1, 3], "ema_alpha": 1.0, "update_interval": 1, "warmup_batches": 0}
    config = tmp_path / "adaptive.json"
    config.write_text(json.dumps({"1": slot}))
    depths = found(f"late_results({who!r}, {str(config)!r})")
    assert depths[0] == 0
    assert set(depths[-20:]) == {3}, depths
