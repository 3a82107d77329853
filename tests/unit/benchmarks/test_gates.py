"""The gates of `make bench-gpu`: their arithmetic, and the exit code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gates
from benchmarks.gates import BUSY, HELD, OURS, Run, main, spoiled, verdict, verdicts
from sglang_adaptive.policy.profile import loads_profile, shipped_config

FLAT = dict.fromkeys(HELD, 80.0)


def turn(ours: float, **held: float) -> dict[str, Any]:
    rates = {**FLAT, **{name.replace("_", "-"): rate for name, rate in held.items()}, OURS: ours}
    passes = {name: {"rate": rate, "accept": 2.0, "round_ms": 2.0 / rate} for name, rate in rates.items()}
    passes[OURS]["depths"] = {"3": 30, "1": 10, "15": 10}
    return {"block": 0, "passes": passes}


def test_the_policy_is_compared_with_the_best_of_the_whole_run() -> None:
    unfinished = {"block": 3, "passes": {OURS: {"rate": 1.0}}}
    row = verdict("replay", 16, [turn(99, static_3=100), turn(199, static_3=200, static_1=201), unfinished])
    assert (row["best"], row["turns"], row["met"]) == ("static-3", 2, True)
    assert row["reached"] == pytest.approx(298 / 300) and row["worst_turn"] == pytest.approx(0.99)


def test_steps_that_are_far_behind_are_left_out() -> None:
    turns = [turn(100, static_3=100, static_2=90) for _ in range(4)]
    for later in turns[2:]:
        del later["passes"]["static-0"]  # at 80
    row = verdict("replay", 16, turns)
    assert (row["best"], row["turns"]) == ("static-3", 4)
    del turns[3]["passes"]["static-2"]  # out of time
    assert verdict("replay", 16, turns)["turns"] == 3


def test_choices_are_compared_without_the_noise_of_the_policys_own_passes() -> None:
    slow = turn(70, static_3=100, static_1=50)  # 30 of 50 rounds like the best, 10 take twice as long, 10 were copied
    mean = (30 / 100 + 10 / 50 + 10 / 70) / 50
    assert verdict("replay", 16, [slow] * 2)["choices"] == pytest.approx(1 / mean / 100)


@pytest.mark.parametrize(
    ("scene", "turns", "met"),
    [
        ("replay", [turn(100, static_3=100)] * 4, True),
        ("replay", [turn(98.9, static_3=100)] * 4, False),
        ("replay", [turn(96.9, static_3=100), *[turn(100, static_3=100)] * 9], False),  # a turn
        (BUSY, [turn(90, static_3=100), *[turn(100, static_3=100)] * 9], True),  # the first one may be
        (BUSY, [*[turn(100, static_3=100)] * 9, turn(95.9, static_3=100)], False),
        ("moe", [turn(90, static_0=100), *[turn(100, static_0=100)] * 9], True),
        ("replay", [turn(100, static_3=100)], False),  # one turn says too little
    ],
)
def test_a_gate_is_met_over_all_turns_and_in_each(scene: str, turns: list[Any], met: bool) -> None:
    assert verdict(scene, 1, turns)["met"] is met


def test_what_was_not_measured_is_not_met(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not verdicts({"moe": [64]}, {})[0]["met"]

    def drive(run: Run) -> None:
        run.driven["moe"] = {size: [turn(99, static_2=100)] * 2 for size in (1, 64)}

    for name, instead in (("start", lambda run: None), ("drive", drive), ("wait_for_kernels", lambda run: None)):
        monkeypatch.setattr(gates.Run, name, instead)
    monkeypatch.setattr(gates.start, "begin", lambda given: setattr(given, "results", tmp_path) or 1e9)
    for scenes, batches, code in (("moe", "1,64", 0), ("moe", "1,16,64", 1), ("moe,smollm2", "1,64", 1)):
        options = ["--scenes", scenes, "--batches", batches, "--host", "cpu", "--work", str(tmp_path)]
        assert main(options) == code
        written = json.loads((tmp_path / "gates.json").read_text())
        assert written["met"] is (code == 0) and "benchmarks.gates" in written["provenance"]["command"]
        assert all({"commit", "date"} <= scene.keys() for scene in written["scenes"].values())
    assert "smollm2, batch 64: not measured" in capsys.readouterr().out
    (tmp_path / "gates.json").rename(tmp_path / "first.json")
    options = ["--work", str(tmp_path), "--join", str(tmp_path / "first.json"), str(tmp_path / "first.json")]
    assert main(options) == 1
    with pytest.raises(SystemExit):
        main(["--scenes", "moe,none"])
    assert "none is not one of replay" in capsys.readouterr().err
    rows = json.loads((tmp_path / "gates.json").read_text())["gates"]
    assert len(rows) == 18 and [(row["scene"], row["batch"]) for row in rows if row["met"]] == [("moe", 1), ("moe", 64)]


def test_a_wrong_profile_is_wrong_by_a_factor_of_two_at_most_and_always_the_same() -> None:
    profile = loads_profile(shipped_config("profiles/h200-llama31-8b-eagle3-fa3.json").read_text(), "shipped")
    wrong = spoiled(profile)
    factors = [b.seconds / a.seconds for a, b in zip(profile.cells, wrong.cells, strict=True)]
    assert wrong == spoiled(profile) and {cell.place for cell in wrong.cells} == {cell.place for cell in profile.cells}
    assert 0.5 <= min(factors) < 0.8 and 1.25 < max(factors) <= 2 and 0.3 < factors.count(1.0) / len(factors) < 0.7
