"""Contenders in turn: ratios and their errors, which turns count, and when a race ends."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from statistics import fmean, stdev
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.harness.results import Report
from benchmarks.harness.turns import LEAST_TURNS, Race, Ratio, best_single, mean_ratio, percentiles, ratio
from tests.fakes import Ticks

# -- ratios -----------------------------------------------------------------------------------------------------


def test_a_ratio_s_error_is_that_of_the_mean_of_logarithms() -> None:
    ours, theirs = [2.0, 2.2, 1.9], [1.0, 1.0, 1.0]
    found = ratio(ours, theirs)
    logs = [math.log(value) for value in ours]
    assert found.value == pytest.approx(math.exp(fmean(logs)))
    assert found.error == pytest.approx(found.value * stdev(logs) / math.sqrt(3))
    same = ratio([10, 300, 7], [5, 150, 3.5])  # blocks differ, the ratio does not
    assert same.value == pytest.approx(2) and same.error == pytest.approx(0, abs=1e-9)
    assert math.isnan(ratio([1], [2]).error)
    with pytest.raises(ValueError, match="no turns"):
        ratio([], [])


def test_mean_ratio_and_best_single() -> None:
    mean = mean_ratio([Ratio(2.0, 0.02), Ratio(0.5, 0.005)])
    assert mean.value == pytest.approx(1.0) and mean.error == pytest.approx(0.01 * math.sqrt(2) / 2)
    assert best_single([{"a": 10, "b": 9, "c": 99}, {"a": 1, "b": 2}]) == "b"


# -- turns ------------------------------------------------------------------------------------------------------


def race_of(folder: Path, serve: Any, cases: list[int], **more: Any) -> Race:
    both = [SimpleNamespace(name="none"), SimpleNamespace(name="throughput")]
    report = Report(folder / "race.json", "served", [])
    return Race(lambda case, number: both, cases, serve, report, end=Ticks().now + 1, ours="throughput", **more)


def test_turns_alternate_and_go_where_the_error_is(tmp_path: Path) -> None:
    draw, served, clock = random.Random(4), [], Ticks()
    noise = {1: 0.001, 4: 0.2}

    def serve(one: Any, size: int, number: int) -> dict[str, Any]:
        served.append((size, number, one.name))
        clock.now += 0.01
        return {"rate": 100 * math.exp(draw.gauss(0, noise[size]))}

    race = race_of(tmp_path, serve, [1, 4], error=0.01, clock=clock)
    race.run()
    assert len(race.turns[1]) == LEAST_TURNS and len(race.turns[4]) > LEAST_TURNS
    assert served[:2] == [(1, 0, "none"), (1, 0, "throughput")]
    assert [name for size, number, name in served if (size, number) == (1, 1)] == ["throughput", "none"]
    assert race.worst_error(1) < 0.01


def test_a_contender_that_fails_twice_is_left_out_and_the_others_go_on(tmp_path: Path) -> None:
    def serve(one: Any, size: int, number: int) -> dict[str, Any]:
        if one.name == "none":
            raise RuntimeError("gone")
        return {"rate": 1.0}

    race = race_of(tmp_path, serve, [1], clock=Ticks())
    race.run()
    assert len(json.loads((tmp_path / "race.json").read_text())["notes"]) == 2
    assert [list(turn["passes"]) for turn in race.turns[1]] == [["throughput"]] * LEAST_TURNS


def test_a_turn_is_cut_short_where_a_pass_would_not_end_in_time(tmp_path: Path) -> None:
    clock = Ticks()

    def serve(one: Any, size: int, number: int) -> dict[str, Any]:
        clock.now += 0.6
        return {"rate": 1.0}

    race = race_of(tmp_path, serve, [1, 2], clock=clock)
    race.run()
    assert [list(turn["passes"]) for turn in race.turns[1]] == [["none"]]
    assert race.turns[2] == [{"block": 0, "passes": {"none": {"rate": 1.0}}}]
    known = race_of(tmp_path, serve, [1], clock=Ticks(), seconds=lambda case: 2.0)
    known.run()
    assert known.turns[1] == []


def test_percentiles_are_milliseconds() -> None:
    found = percentiles([number / 1000 for number in range(101)])
    assert found == pytest.approx({"p50_ms": 50, "p95_ms": 95, "p99_ms": 99, "mean_ms": 50, "count": 101})
    assert percentiles([0.002]) == {"p50_ms": 2, "p95_ms": 2, "p99_ms": 2, "mean_ms": 2, "count": 1}
    assert percentiles([]) is None
