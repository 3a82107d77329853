"""The doctor's report on the table of a DSPARK line, read by SGLang's own reader."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_adaptive.doctor import installation
from sglang_adaptive.doctor.check import NOTE, OK, PROBLEM, Check
from sglang_adaptive.doctor.installation import dspark_check as check
from sglang_adaptive.policy.config import check_config
from sglang_adaptive.sglang_plugin.launch.line import planner
from sglang_adaptive.sglang_plugin.workers.arguments import LEARNT, planner_reason
from tests.releases import since_the_newest

WHOLE = {"sample_batch_tokens": [8, 64], "sample_steps_per_sec": [200.0, 150.0], "max_batch_tokens": 64}
CONFIGS: dict[str, dict[str, Any]] = {
    "throughput": {"policy": "throughput"},
    "ema": {"policy": "ema", "1": {"candidate_steps": [0, 1]}},
}
COMPACT = {
    "speculative_algorithm": "DSPARK",
    "disaggregation_mode": "null",
    "speculative_dspark_sps_table_path": None,
}


def told(table: Path | None, **more: Any) -> Check | None:
    line = {"speculative_algorithm": "DSPARK", "disaggregation_mode": "null", **more}
    path = None if table is None else str(table)
    return check(planner(SimpleNamespace(**line, speculative_dspark_sps_table_path=path)))


def status(table: Path | None) -> str:
    found = told(table)
    assert found is not None
    return found.status


def test_line_with_and_without_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "table.json"
    path.write_text(json.dumps(WHOLE))
    monkeypatch.setenv("SGLANG_RAGGED_VERIFY_MODE", "compact")
    assert (status(None), status(path)) == (NOTE, OK)
    learnt = check(planner(SimpleNamespace(**COMPACT)), learns=True)
    assert learnt is not None and learnt.status == OK and "is learned" in learnt.words
    monkeypatch.delenv("SGLANG_RAGGED_VERIFY_MODE")
    assert (status(None), status(path)) == (NOTE, NOTE)


@pytest.mark.parametrize("text", ["", "{", "{}", json.dumps({**WHOLE, "sample_batch_tokens": [64, 8]})])
def test_table_that_sglang_cannot_read(text: str, tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    path.write_text(text)
    assert status(path) == PROBLEM


def test_table_that_sglang_takes_as_none(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    path.write_text(json.dumps({**WHOLE, "sample_batch_tokens": [8], "sample_steps_per_sec": [200.0]}))
    assert status(path) == PROBLEM and status(tmp_path / "nowhere.json") == PROBLEM


def test_lines_that_plan_nothing() -> None:
    assert told(None, speculative_algorithm="EAGLE3") is None
    assert told(None, speculative_algorithm=None) is None
    assert told(None, disaggregation_mode="prefill") is None


def test_the_doctor_tells_it_of_a_dspark_line_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    launch: dict[str, Any] = {"asked": True, "reason": "speculative_algorithm=DSPARK (only EAGLE/EAGLE3 are supported)"}
    monkeypatch.setattr(installation, "_ask", lambda line: {"launch": launch})

    def names() -> list[str]:
        return [check.name for check in installation.checks(None)]

    assert "DSPARK table" not in names()
    launch["dspark"] = {"mode": "compact", "table": None, "problem": None}
    assert "DSPARK table" in names()


def test_a_line_that_learns_the_table_is_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    launch: dict[str, Any] = {"asked": True, "reason": LEARNT, "learns": True}
    launch["dspark"] = {"mode": "compact", "table": None, "problem": None}
    monkeypatch.setattr(installation, "_ask", lambda line: {"launch": launch})
    found = {check.name: check for check in installation.checks(None)}
    assert (found["launch line"].status, found["DSPARK table"].status) == (OK, OK)
    assert "to adapt" not in found
    launch["learns"] = False
    found = {check.name: check for check in installation.checks(None)}
    assert (found["launch line"].status, found["DSPARK table"].status) == (PROBLEM, NOTE)


@pytest.mark.parametrize(
    ("mode", "policy", "ranks", "words"),
    [
        pytest.param("compact", "throughput", 1, LEARNT, marks=since_the_newest),
        ("static", "throughput", 1, "SGLANG_RAGGED_VERIFY_MODE is static"),
        (None, "throughput", 1, "SGLANG_RAGGED_VERIFY_MODE is static"),
        ("cap-accept", "throughput", 1, "SGLANG_RAGGED_VERIFY_MODE is cap-accept"),
        ("compact", "ema", 1, "the policy is ema"),
        ("compact", "throughput", 2, "with attention DP"),
    ],
)
def test_which_lines_learn(
    mode: str | None, policy: str, ranks: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if mode is None:
        monkeypatch.delenv("SGLANG_RAGGED_VERIFY_MODE", raising=False)
    else:
        monkeypatch.setenv("SGLANG_RAGGED_VERIFY_MODE", mode)
    line = SimpleNamespace(**COMPACT, enable_dp_attention=False, attn_dp_size=ranks)
    reason = planner_reason(line, check_config(CONFIGS[policy], "a file"))
    assert words in reason and (reason == LEARNT) == (words == LEARNT)
