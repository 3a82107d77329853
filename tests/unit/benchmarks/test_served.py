"""Real text on live servers: what computes numbers, and the loop against an HTTP server that answers like SGLang."""

from __future__ import annotations

import asyncio
import json
import math
import random
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web

from benchmarks.served import equality, hook_times, loop, phases, table
from benchmarks.served.arrivals import GROUPS, figures, times_of
from benchmarks.served.hook_times import Spent
from benchmarks.served.overhead import by_hook
from benchmarks.served.questions import block
from benchmarks.served.race import LEAST_TURNS, Race
from benchmarks.served.ratios import Ratio, best_single, mean_ratio, ratio
from benchmarks.served.report import Report, read
from benchmarks.server.load import Answer

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


def test_the_error_covers_the_truth_as_often_as_it_says() -> None:
    draw = random.Random(3)
    inside = 0
    for _ in range(2000):
        ours = [math.exp(draw.gauss(math.log(1.05), 0.02)) for _ in range(12)]
        found = ratio(ours, [1.0] * 12)
        inside += abs(math.log(found.value / 1.05)) < found.error / found.value
    assert 0.60 < inside / 2000 < 0.72  # Student's t with 11 degrees of freedom: 0.66


def test_mean_ratio_and_best_single() -> None:
    mean = mean_ratio([Ratio(2.0, 0.02), Ratio(0.5, 0.005)])
    assert mean.value == pytest.approx(1.0) and mean.error == pytest.approx(0.01 * math.sqrt(2) / 2)
    assert best_single([{"a": 10, "b": 9, "c": 99}, {"a": 1, "b": 2}]) == "b"


# -- turns ------------------------------------------------------------------------------------------------------


def contender(name: str) -> Any:
    return SimpleNamespace(name=name)


class Clock:
    """A clock that passes move on, whatever the machine does meanwhile."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_turns_alternate_and_go_where_the_error_is(tmp_path: Path) -> None:
    draw, served, clock = random.Random(4), [], Clock()
    noise = {1: 0.001, 4: 0.2}

    def serve(one: Any, size: int, number: int) -> dict[str, Any]:
        served.append((size, number, one.name))
        clock.now += 0.01
        return {"rate": 100 * math.exp(draw.gauss(0, noise[size]))}

    report = Report(tmp_path, "greedy", "what", {}, [])
    both = [contender("none"), contender("throughput")]
    race = Race(both, [1, 4], serve, report, end=1.0, error=0.01, clock=clock)
    race.run()
    turns = read(report.path)["batches"]  # type: ignore[index]
    assert len(turns["1"]) == LEAST_TURNS and len(turns["4"]) > LEAST_TURNS
    assert served[:2] == [(1, 0, "none"), (1, 0, "throughput")]
    assert [name for size, number, name in served if (size, number) == (1, 1)] == ["throughput", "none"]
    assert race.worst_error(1) < 0.01


def test_a_contender_that_fails_twice_is_left_out_and_the_others_go_on(tmp_path: Path) -> None:
    def serve(one: Any, size: int, number: int) -> dict[str, Any]:
        if one.name == "none":
            raise RuntimeError("gone")
        return {"rate": 1.0}

    report = Report(tmp_path, "greedy", "what", {}, [])
    Race([contender("none"), contender("throughput")], [1], serve, report, end=1.0, clock=Clock()).run()
    content = read(report.path)
    assert content is not None and len(content["notes"]) == 2
    assert [list(turn["passes"]) for turn in content["batches"]["1"]] == [["throughput"]] * LEAST_TURNS


def test_no_turn_begins_that_would_not_end_in_time(tmp_path: Path) -> None:
    clock = Clock()

    def serve(one: Any, size: int, number: int) -> dict[str, Any]:
        clock.now += 0.2
        return {"rate": random.random()}

    report = Report(tmp_path, "greedy", "what", {}, [])
    Race([contender("none"), contender("throughput")], [1], serve, report, end=1.0, error=0, clock=clock).run()
    assert len(report.content["batches"][1]) == 2


# -- the loop ---------------------------------------------------------------------------------------------------


@dataclass
class Fake:
    """Answers /generate like SGLang, token by token; an abort answers with what there is."""

    token_seconds: float = 0.001
    running: int = 0
    seen: list[tuple[int, int]] = field(default_factory=list)
    """The place in input_ids[0] of each request, and how many ran with it."""

    url: str = ""
    aborted: asyncio.Event = field(default_factory=asyncio.Event)

    async def generate(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.running += 1
        self.seen.append((body["input_ids"][0], self.running))
        had, wanted = 0, body["sampling_params"]["max_new_tokens"]
        if wanted < 0:
            self.running -= 1
            return web.json_response({"error": {"message": "refused"}}, status=400)
        while had < wanted and not self.aborted.is_set():
            await asyncio.sleep(self.token_seconds)
            had += 1
        self.running -= 1
        return web.json_response({"meta_info": {"completion_tokens": had}, "output_ids": [0] * had})

    async def abort(self, request: web.Request) -> web.Response:
        assert (await request.json())["abort_all"]
        self.aborted.set()
        return web.Response()


@pytest.fixture
def fake() -> Iterator[Fake]:
    server, ready, over = Fake(), threading.Event(), threading.Event()

    async def serve() -> None:
        app = web.Application()
        app.router.add_post("/generate", server.generate)
        app.router.add_post("/abort_request", server.abort)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        ready.set()
        while not over.is_set():
            await asyncio.sleep(0.01)
        await runner.cleanup()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    assert ready.wait(20)
    yield server
    over.set()
    thread.join(20)


def body(tokens: int) -> loop.Make:
    return lambda number, place: {"input_ids": [place], "sampling_params": {"max_new_tokens": tokens + number}}


def test_the_loop_keeps_the_batch_full_and_cuts_what_is_left(fake: Fake) -> None:
    done = loop.run(fake.url, 12, 4, body(20))
    assert sorted(done.answers) == list(range(12)) and not done.failed
    assert max(count for _, count in fake.seen) == 4
    assert {place for place, _ in fake.seen} == set(range(4))
    tokens = [done.answers[number]["meta_info"]["completion_tokens"] for number in range(12)]
    assert tokens[:8] == [20 + number for number in range(8)]
    assert any(tokens[number] < 20 + number for number in range(8, 12))
    assert done.tokens == sum(tokens) and done.seconds > 0


def test_places_are_filled_in_groups(fake: Fake) -> None:
    assert [loop.group_of(size) for size in (1, 4, 16, 64)] == [1, 1, 2, 8]
    loop.run(fake.url, 64, 32, body(5))
    assert max(count for _, count in fake.seen) == 32


def test_without_a_cut_every_request_ends(fake: Fake) -> None:
    done = loop.run(fake.url, 6, 4, body(3), cut=False)
    assert [done.answers[number]["meta_info"]["completion_tokens"] for number in range(6)] == [3 + n for n in range(6)]
    assert loop.run(fake.url, 3, 1, body(2)).tokens == 2 + 3 + 4


def test_refused_requests_are_told(fake: Fake) -> None:
    with pytest.raises(RuntimeError, match="refused"):
        loop.run(fake.url, 2, 1, body(-9))


# -- equality ---------------------------------------------------------------------------------------------------


def test_differences_are_traced_to_their_first_token() -> None:
    reference = {0: [1, 2, 3], 1: [1, 2, 3], 2: [5, 6, 7]}
    assert equality.differences(reference, {0: [1, 2, 3], 1: [1, 9, 3], 2: [5, 6, 8]}) == {1: 1, 2: 2}
    found = equality.verdict(3, {1: 1, 2: 2}, [0.1, 0.5])
    assert (found["equal"], found["different"], found["largest_gaps"]) == (1, 2, [0.1, 0.5])
    assert list(found["ties"].values()) == [0, 1, 1] and found["beyond_the_likeliest"] == 0
    assert equality.verdict(3, {1: 1}, [None])["beyond_the_likeliest"] == 1


# -- arrivals ---------------------------------------------------------------------------------------------------


def test_arrivals_come_at_their_rate_and_latencies_by_group() -> None:
    times = times_of(50, 200.0, seed=1)
    assert times == times_of(50, 200.0, seed=1) and times == sorted(times)
    assert abs(len(times) / 200 - 50) < 5 * math.sqrt(50 / 200)
    assert len(times_of(0.1, 0.5, seed=1)) == GROUPS
    answers = [Answer(0.0, [(0.1, 1), (1.0 + number, 9)]) for number in range(2 * GROUPS)]
    found = figures(answers)
    assert found["group_ms"] == pytest.approx([1500 + 2000 * group for group in range(GROUPS)])
    assert found["first_token"]["p50_ms"] == pytest.approx(100)


# -- host time --------------------------------------------------------------------------------------------------


def test_a_function_s_own_time_leaves_out_what_it_calls_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    def spend(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    times = hook_times.HookTimes(tmp_path / "times", create=True)
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
    found = hook_times.HookTimes(tmp_path / "times").read()
    assert found == {
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


# -- tables -----------------------------------------------------------------------------------------------------


def content(**rates: list[float]) -> dict[str, Any]:
    turns = [
        {"block": n, "passes": {name.replace("_", "-"): {"rate": rates[name][n]} for name in rates}} for n in (0, 1)
    ]
    doubled = [
        {"block": n, "passes": {name: {"rate": 2 * one["rate"]} for name, one in turn["passes"].items()}}
        for n, turn in enumerate(turns)
    ]
    return {"batches": {"16": doubled, "1": turns}}


def test_the_race_s_table_has_every_rival() -> None:
    found = content(
        none=[50, 51], static_0=[200, 200], static_1=[90, 90], static_3=[100, 102], sglang_ema=[80, 80],
        throughput=[110, 112.2],
    )  # fmt: skip
    lines = list(table.race(found))
    assert "3 steps, the best over all" in lines[0]
    assert [line.split("|")[1].strip() for line in lines[2:]] == ["1", "16", "all, geometric mean"]
    cells = [cell.strip() for cell in lines[2].split("|")]
    assert cells[2] == "111" and cells[3].startswith("1.100 ± 0.000 (3 steps)") and cells[4] == "1.100 ± 0.000"
    assert cells[6].startswith("1.389 ±") and cells[7] == "2"
    assert "| 3 steps | 101 | 202 |" in list(table.rates(found))


def test_a_table_leaves_out_what_was_not_measured() -> None:
    lines = list(table.race(content(static_3=[100, 100], throughput=[99, 99])))
    assert lines[2].split("|")[5:7] == ["  ", "  "]
    assert list(table.race({}))[-1].startswith("| all")
    assert len(list(table.rates({}))) == 1 and list(table.host_time({})) and list(table.poisson({}))


def test_equality_host_time_and_arrivals_are_told() -> None:
    equal = {
        "questions": 480, "equal": 470, "different": 10, "ties": {"0.1251": 9}, "largest_gaps": [0.1, 0.2],
        "beyond_the_likeliest": 0, "rounds": 900, "switches": 77,
    }  # fmt: skip
    assert list(table.equality({"by policy": equal, "plan": {}}))[2:] == [
        "| by policy | 480 | 470 | 10 | 9 | 0.200 | 900 | 77 |"
    ]
    held = {"batches": {"1": [{"passes": {"stock": {"rate": 100}, "held": {"rate": 99}}}]}}
    lines = list(
        table.host_time({"host_us_a_round": {"1": {"ours": 31.2, "in_place_of_sglang_s": 5}}, "steps 3": held})
    )
    assert lines[1].endswith("| 31 |") and lines[-1] == "| 3 steps held, over stock SGLang | 0.990 |"
    hooks = {"around b: fast_path.x:g": {"us": 20.0}, "before a: scheduler.x:f": {"us": 5.0}}
    former = {"ours": 31.2, "in_place_of_sglang_s": 0.0, "by_hook": hooks}
    assert [line[-6:] for line in table.host_time({"host_us_a_round": {"1": former}})][1:] == ["| 11 |", "| 20 |"]
    one = {"latency": {"p50_ms": 100, "p95_ms": 200}, "first_token": {"p50_ms": 10, "p95_ms": 20}}
    turns = [{"passes": {"none": {**one, "group_ms": [20, 20]}, "throughput": {**one, "group_ms": [10, 10]}}}]
    assert "2.000 ± 0.000" in list(table.poisson({"turns": turns}))[2]


def test_blocks_go_round() -> None:
    assert block(0, 4, 10) == [0, 1, 2, 3] and block(2, 4, 10) == [8, 9, 0, 1]


def test_a_report_is_read_back_and_other_files_are_refused(tmp_path: Path) -> None:
    report = Report(tmp_path, "greedy", "what", {"tokens": 3}, ["drive", "--work", "/home/somebody/work"])
    report.content["batches"] = {1: [{"passes": {"none": {"rate": 1 / 3}}}]}
    report.note("a line")
    report.write()
    found = read(report.path)
    assert found is not None and found["batches"]["1"][0]["passes"]["none"]["rate"] == 0.33333
    assert "/home" not in report.path.read_text() and found["notes"] == ["a line"]
    assert read(tmp_path / "absent.json") is None
    (tmp_path / "other.json").write_text(json.dumps({"schema": 2}))
    with pytest.raises(ValueError, match=r"other\.json: schema: got 2"):
        read(tmp_path / "other.json")


def test_the_page_s_tables_do_without_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "scripts"))
    import served_tables

    monkeypatch.setattr(served_tables, "RESULTS", tmp_path)
    assert served_tables.tables() == {}
    sys.modules.pop("served_tables")


def test_one_server_is_several_contenders() -> None:
    asked: list[Any] = []
    policy = SimpleNamespace(config={"throughput": {"margin": 0.02}}, ours=True)
    client = SimpleNamespace(configure=asked.append, force_budget=asked.append)
    server: Any = SimpleNamespace(name="throughput-budgets", policy=policy, client=client, force=asked.append)
    choice: Any = SimpleNamespace(depths=[0, 3], pairs=[(5, 3)])
    contenders = phases._on_one_server(server, choice)
    names = ["static-0", "static-3", "5-verified-3", "throughput", "throughput-budgets"]
    assert [one.name for one in contenders] == names
    for one in contenders[2:]:
        one.take_over()
    rectangles, budgets = ({"throughput": {"margin": 0.02, "verify_budget": on}} for on in (False, True))
    assert asked == [5, 3, rectangles, None, 0, budgets, None, 0]
