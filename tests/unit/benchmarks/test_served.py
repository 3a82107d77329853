"""Real text on live servers: contenders, blocks, and host time by hook."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import served
from benchmarks.harness import start
from benchmarks.harness.acceptance import QUESTION, TRACE_FILE
from benchmarks.harness.hook_times import HookTimes, Spent, by_hook
from benchmarks.served import Phase, parser
from sglang_adaptive.lab import traces

TINY = Path(__file__).parents[3] / "benchmarks" / "traces" / "tiny.npz"


def test_the_trace_of_the_start_is_the_one_that_is_replayed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(start, "start_all", lambda policies, make, end, leave: asked.extend(policies) or [])
    given = parser().parse_args(["start", "replay", "--host", "cpu", "--trace", str(TINY), "--work", str(tmp_path)])
    given.scene, given.folder = "replay", tmp_path / "replay"
    assert served._start(given, 0.0) == 1
    assert [policy.name for policy in asked] == ["none", "sglang-ema", "throughput"]
    assert {policy.variables[TRACE_FILE] for policy in asked} == {str(TINY)}

    driven = parser().parse_args(["drive", "replay", "--tokens", "40", "--context", "9", "--requests", "4:900"])
    driven.scene, driven.folder, driven.results = "replay", given.folder, tmp_path
    phase = Phase(driven, [], 0.0)
    phase.servers = [SimpleNamespace(name=policy.name, policy=policy) for policy in asked]  # type: ignore[misc]
    make, trace = phase.recorded()(0, 4), traces.read(TINY)
    bodies = [make(request, request % 4) for request in range(900)]
    assert bodies[0]["input_ids"] == bodies[4]["input_ids"] != bodies[1]["input_ids"]
    for body in bodies:
        sampling = body["sampling_params"]
        assert sampling["max_new_tokens"] == min(trace.length[sampling["custom_params"][QUESTION]] + 1, 40)
    assert len({body["sampling_params"]["custom_params"][QUESTION] for body in bodies}) == len(trace.category)
    assert phase.report.content["plan"]["trace"] == "tiny.npz"


def test_a_function_s_own_time_leaves_out_what_it_calls_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    def spend(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    times = HookTimes(tmp_path / "times", create=True)
    inner = times.timed("before x: inner", lambda: spend(3))

    def sglangs() -> str:
        spend(100)
        inner()
        return "result"

    def around(original: Any) -> Any:
        spend(10)
        found = original()
        spend(20)
        return found

    outer = times.timed("around x: outer", around, around=True)
    assert [outer(sglangs), outer(sglangs)] == ["result", "result"]
    nested = times.timed("after x: nested", lambda: (spend(1), inner()))
    nested()
    instead = times.timed("around x: instead", lambda original, ours: spend(5) if ours else original(), around=True)
    instead(sglangs, True)
    instead(sglangs, False)
    assert HookTimes(tmp_path / "times").read() == {
        "before x: inner": (4, 12, 0), "around x: outer": (2, 60, 0), "after x: nested": (1, 1, 0),
        "around x: instead": (2, 5, 5),
    }  # fmt: skip


def test_times_by_hook_are_microseconds_a_round() -> None:
    fast, own, idle = "around b: attention.g", "around a: worker.f", "around c: worker.h"
    before = {own: Spent(10, 1.0, 0.0), fast: Spent(0, 0.0, 0.0), idle: Spent(5, 2.0, 0.0)}
    after = {own: Spent(30, 1.001, 0.0), fast: Spent(10, 0.0005, 0.0003), idle: Spent(5, 2.0, 0.0)}
    found = by_hook(before, after, 10)
    assert found["ours"] == pytest.approx(120) and found["in_place_of_sglang_s"] == pytest.approx(30)
    assert found["by_hook"] == {
        own: {"us": pytest.approx(100), "calls": pytest.approx(2)},
        fast: {"us": pytest.approx(50), "calls": pytest.approx(1)},
    }
