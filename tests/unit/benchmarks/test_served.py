"""Real text on live servers: contenders, blocks, and host time by hook."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.harness.hook_times import HookTimes, Spent, by_hook
from benchmarks.harness.start import POLICIES
from benchmarks.host_time import DEVICE, between_marks, tally
from benchmarks.served import block, contenders


def servers(*names: str) -> Any:
    known = {**POLICIES, "budget-2": POLICIES["throughput"]}
    return [SimpleNamespace(name=name, policy=known[name]) for name in names]


def named(*names: str, depths: tuple[int, ...] = (), pairs: tuple[tuple[int, int], ...] = ()) -> list[str]:
    given: Any = SimpleNamespace(depths=depths, pairs=pairs)
    return [one.name for one in contenders(servers(*names), given)]


def test_depths_are_held_behind_those_without_speculation() -> None:
    assert named("sglang-ema", "none", "throughput", depths=(1, 3)) == [
        "none", "static-1", "static-3", "sglang-ema", "throughput",
    ]  # fmt: skip
    assert named("budget-2", depths=(1, 3)) == ["static-1", "budget-2-of-3"]
    assert named("budget-2", "throughput", depths=(1, 3)) == ["static-1", "static-3", "budget-2-of-3", "throughput"]


def test_one_server_is_several_contenders() -> None:
    found = named("throughput-budgets", depths=(0, 3), pairs=((5, 3),))
    assert found == ["static-0", "static-3", "5-verified-3", "throughput", "throughput-budgets"]
    given: Any = SimpleNamespace(depths=(), pairs=())
    rectangles, budgets = contenders(servers("throughput-budgets"), given)
    switched = [one.config["throughput"]["verify_budget"] for one in (rectangles, budgets) if one.config]
    assert switched == [False, True]


def test_blocks_go_round() -> None:
    assert block(0, 4, 10) == [0, 1, 2, 3] and block(2, 4, 10) == [8, 9, 0, 1]


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
    fast, own, idle = "around b: fast_path.x:g", "around a: scheduler.x:f", "after c: scheduler.x:h"
    before = {own: Spent(10, 1.0, 1.0), fast: Spent(0, 0.0, 0.0), idle: Spent(5, 2.0, 0.0)}
    after = {own: Spent(30, 1.001, 1.001), fast: Spent(10, 0.0005, 0.0003), idle: Spent(5, 2.0, 0.0)}
    found = by_hook(before, after, 10)
    assert found["ours"] == pytest.approx(120) and found["in_place_of_sglang_s"] == pytest.approx(30)
    assert found["by_hook"] == {
        own: {"us": pytest.approx(100), "calls": pytest.approx(2)},
        fast: {"us": pytest.approx(50), "calls": pytest.approx(1)},
    }


def test_a_trace_is_summed_by_name_and_by_round() -> None:
    spans = [("a", 0.0, 4.0), ("b", 2.0, 4.0), ("a", 10.0, 2.0), ("b", 20.0, 1.0)]  # the first two at the same time
    events: list[dict[str, Any]] = [{"cat": "kernel", "name": name, "ts": at, "dur": long} for name, at, long in spans]
    events += [{"cat": "cpu_op", "name": "host", "ts": 0.0, "dur": 99.0}, {"name": "without a kind", "ts": 1}]
    found = tally(events, 2, DEVICE)
    assert (found["wall_us"], found["busy_us"], found["idle_us"], found["launches"]) == (10.5, 4.5, 6.0, 2.0)
    assert found["by_name"] == {"a": {"us": 3.0, "launches": 1.0}, "b": {"us": 2.5, "launches": 1.0}}
    with pytest.raises(RuntimeError, match="no event of gpu_memset"):
        tally(events, 2, ("gpu_memset",))
    assert between_marks(events, "b", DEVICE) == [15.0]
    assert between_marks(events, "host", DEVICE) == []
