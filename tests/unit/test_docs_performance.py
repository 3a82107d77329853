"""What docs/performance.md says beside its generated tables is what its raw data says."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from statistics import geometric_mean, mean, median
from typing import Any

from benchmarks.server import graph_times

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = " ".join((ROOT / "docs" / "performance.md").read_text().split())
RUN = RESULTS / "h200" / "third-run"
SIXTH, NINTH, TENTH, ELEVENTH = (f"../{name}-run/" for name in ("sixth", "ninth", "tenth", "eleventh"))
IN_TURN, ANOTHER_GPU = ELEVENTH + "in-turn/", ELEVENTH + "in-turn-second-gpu/"
COMPARED = (
    [IN_TURN + name for name in ("none.json", "none-1.json", "throughput.json", "throughput-1.json")],
    [ANOTHER_GPU + name for name in ("none.json", "throughput.json")],
    [ELEVENTH + "zero-steps.json"],
)
"""Files of each measurement of zero steps against no speculation."""


def results(name: str) -> Any:
    return json.loads((RESULTS / name).read_text())


def switches_hourly() -> dict[int, list[int]]:
    """Return those of every simulated draw of steady load, by batch size."""
    found: dict[int, list[int]] = {}
    for draw in results("simulation/steady.json")["draws"]:
        found.setdefault(draw["batch_size"], []).append(round(draw["switches_per_hour"]))
    return found


def run(name: str) -> Any:
    return json.loads((RUN / name).read_text())


def rates(*names: str) -> dict[tuple[int, float | None], dict[str, float]]:
    """Return tokens/s of the cells by (batch size, p), and there by contender; the mean of several files."""
    found: dict[tuple[int, float | None], dict[str, list[float]]] = {}
    for row in [row for name in names for row in run(name)["rows"]]:
        of_case = found.setdefault((row["case"]["batch_size"], row["case"]["p"]), {})
        of_case.setdefault(row["contender"], []).append(row["tokens_per_second"])
    return {case: {name: mean(several) for name, several in by.items()} for case, by in found.items()}


def mean_round(row: dict[str, Any]) -> float:
    """Return milliseconds."""
    passes = row["passes"]
    return 1000 * sum(one["seconds"] for one in passes) / sum(one["rounds"] for one in passes)


def over_none(contender: str, p: float | None) -> str:
    """Return tokens/s over those without speculation by batch size, the mean of the eleventh run's measurements."""
    measured = [rates(*names) for names in COMPARED]
    means = [
        geometric_mean(found[size, p][contender] / found[size, None]["none"] for found in measured)
        for size in (1, 8, 32, 64)
    ]
    return "{:.3f}, {:.3f}, {:.3f} and {:.3f}".format(*means)


def test_what_zero_steps_and_a_useless_draft_cost() -> None:
    assert f"zero steps alone serve {over_none('static-0', None)}, the mean of the latest run's three" in PAGE
    page = " ".join((ROOT / "docs" / "zero-steps.md").read_text().split())
    assert f"here it is {over_none('static-0', None)} at batch 1, 8, 32 and 64, in the mean of three" in page
    useless = over_none("throughput", 0.0)
    assert f"serves {useless} of what one without speculation does, at batch 1, 8, 32 and 64" in PAGE
    owed: dict[int, list[float]] = {}
    zero_steps = [row for names in COMPARED for name in names for row in run(name)["rows"]]
    for row in [row for row in zero_steps if row["contender"] == "static-0"]:
        typical = median(one["round_ms"]["median"] for one in row["passes"])
        owed.setdefault(row["case"]["batch_size"], []).append(8 * (mean_round(row) - typical))
    at = {size: median(several) for size, several in owed.items()}
    assert f"{at[1]:.1f} ms in every eighth round at batch 1, and {at[64]:.1f} ms at batch 64" in PAGE


def test_the_two_ways_that_a_plain_decode_runs() -> None:
    """As `python -m benchmarks.server.graph_times` tells them; the first graphs are of 1, 8, 32 and 64 requests."""
    replays = graph_times.read(RUN / ELEVENTH / "company" / "graph-times-none.csv.gz")
    shares, saved = [], []
    for graph in range(4):
        of_graph = [one for one in replays if one.graph == graph]
        rounds, ms = graph_times.total(graph_times.faster(of_graph))
        shares.append(rounds / len(of_graph))
        saved.append(ms / len(of_graph) / median(one.graph_ms for one in of_graph))
    assert f"{100 * min(shares):.0f} to {100 * max(shares):.0f}% of its rounds" in PAGE
    assert f"That is worth {100 * max(saved):.1f}% at most" in PAGE


def test_what_the_policy_is_held_against() -> None:
    found: dict[str, list[float]] = {}
    for row in run(TENTH + "switching.json")["rows"]:
        found.setdefault(row["contender"], []).append(row["tokens_per_second"])
    best = max((name for name in found if name.startswith("static")), key=lambda name: geometric_mean(found[name]))
    assert f"one for acceptance and load together, {best[-1]} steps." in PAGE
    cells, ahead = rates(TENTH + "cells.json"), []
    for size in (1, 8, 32, 64):
        hard, easy = cells[size, 0.3], cells[size, 0.9]
        single = max(hard[f"static-{steps}"] + easy[f"static-{steps}"] for steps in (3, 5, 7))
        drafting = [{rate for name, rate in of.items() if name.startswith("static")} for of in (hard, easy)]
        ahead.append(sum(map(max, drafting)) / single - 1)
    assert f"would be {100 * min(ahead):.0f} to {100 * max(ahead):.0f}% ahead" in PAGE


def test_hard_phases_at_batch_1() -> None:
    """At zero steps one would be at what no draft serves."""
    zero = rates(TENTH + "zero-steps.json")[1, None]["static-0"]
    for folder, spent in ((NINTH, 4), (TENTH, 0)):
        rows = [row for name in ("switching", "switching-batch-1") for row in run(f"{folder}{name}.json")["rows"]]
        passes = [
            one["phases"]
            for row in rows
            if row["contender"] == "throughput" and row["case"].get("batch_size") == 1
            for one in row["passes"]
        ]
        hard = [rate for phases in passes for rate in phases[::2]]
        assert (len(hard), sum(rate < 1.02 * zero for rate in hard)) == (24, spent)
    assert "kept zero steps in four of 24 hard phases at batch 1, and in none since" in PAGE


def test_what_steady_load_showed() -> None:
    loads = {size: run(f"{TENTH}steady-{size}.json")["rows"][0] for size in (8, 32)}
    passes = {size: row["passes"][0] for size, row in loads.items()}
    assert [round(row["seconds"]) for row in loads.values()] == [600, 270]
    switches, later = ([one[key] for one in passes.values()] for key in ("switches", "settled_switches"))
    assert f"batch 8 the depth changed {switches[0]} times and" in PAGE
    assert f"at batch 32 it changed {switches[1]} times; after the first minute {later[0]} and {later[1]} times" in PAGE
    with (RUN / TENTH / "steady-changes.csv").open() as file:
        causes = {row["cause"] for row in csv.DictReader(file) if float(row["seconds"]) > 2}
    assert causes == {"probe"} and "All of it is probes, there and back" in PAGE
    assert f"5 steps ran in {passes[8]['depths']['5']:,} of {passes[8]['rounds']:,} rounds at batch 8" in PAGE
    long = run(NINTH + "steady-32.json")["rows"][0]
    hourly = 3600 * later[1] / (loads[32]["settled_seconds"] + long["seconds"] - 60)
    assert long["passes"][0]["settled_switches"] == 0
    assert f"{loads[32]['switches_per_hour']:.0f} switches an hour; with the ten minutes" in PAGE
    assert f"after the first, it is {hourly:.0f}." in PAGE
    simulated = switches_hourly()
    hourly_simulated = simulated[8] + simulated[32]
    shares = [draw["share"] for draw in results("simulation/steady.json")["draws"]]
    told = f"such loads make {min(hourly_simulated)} to {max(hourly_simulated)} switches an hour"
    assert f"{told} and have {min(shares):.3f} to {max(shares):.3f} of the oracle" in PAGE


def test_arrivals() -> None:
    medians = {
        (row["case"]["share"], row["contender"]): [one["latency"]["p50_ms"] for one in row["passes"]]
        for row in run(NINTH + "arrivals.json")["rows"]
    }

    def percent_over(share: float, which: slice = slice(None)) -> int:
        ours, static = (mean(medians[share, name][which]) for name in ("throughput", "static-3"))
        return round(100 * (ours / static - 1))

    low, middle, high = map(percent_over, (0.3, 0.6, 0.9))
    assert low == middle and f"{-low}% lower at 30 and 60% of the load, and {high}% higher at 90%" in PAGE
    assert [percent_over(0.9, slice(index, index + 1)) for index in (0, 1)] == [0, 12]
    assert "level in one pass and 12% higher in the other" in PAGE


def test_what_the_repairs_bought() -> None:
    second = json.loads((RESULTS / "h200" / "second-run" / "cells.json").read_text())
    starts = ("zero-steps.json", "more/zero-steps-again.json", "switching.json", "more/switching-again.json")
    names = [SIXTH + name for name in starts]
    alone = [NINTH + "steady-32.json", *(folder + "throughput.json" for folder in (IN_TURN, ANOTHER_GPU))]
    runs = (second, *map(run, [*names, *alone, TENTH + "zero-steps.json"]))
    built = [one["servers"]["throughput"]["startup"]["tiers_total"] for one in runs]
    seconds, gigabytes = ([one[key] for one in built[1:]] for key in ("seconds", "gb"))
    assert f"launch depth, seconds | {built[0]['seconds']:.1f} | {min(seconds):.1f} to {max(seconds):.1f} |" in PAGE
    assert len(set(gigabytes[:-1])) == 1 and not runs[-1]["servers"]["throughput"]["startup"]["alone"]
    assert f"context 131,072), GB | {built[0]['gb']:.1f} | {gigabytes[0]:.2f} |" in PAGE
    late = [
        len(run(name)["servers"]["throughput"]["adaptive"]["startup"]["late_kernel_loads"])
        for name in ("switching.json", "after/cells.json", "after/first-use.json")
    ]
    assert f"while serving, in a run | {late[0]} | {late[1]} |" in PAGE and late[1] == late[2]
    more = []
    for name in ("rounds.json", TENTH + "rounds.json"):
        launches = {(row["server"], row["batch_size"]): row["launches"] for row in run(name)["rows"]}
        more += [round(launches["zero", batch] - launches["none", batch]) for batch in (1, 64)]
    assert "a plain decode, batch 1 and 64 | {}, {} | {}, {} |".format(*more) in PAGE
    found = {batch: by for (batch, p), by in rates("../second-run/cells.json").items() if p is None}
    before = ", ".join(f"{by['static-0'] / by['none']:.3f}" for _, by in sorted(found.items()))
    after = over_none("static-0", None).replace(" and", ",")
    assert f"batch 1, 8, 32, 64 | {before} | {after} |" in PAGE


def test_the_readme_tells_the_same() -> None:
    readme = " ".join((ROOT / "README.md").read_text().split())
    [over] = re.findall(r"SGLang's own EMA, geometric mean \| >= 1.25 \| ([\d.]+) \|", PAGE)
    assert f"it serves {over} times the tokens of SGLang's own adaptive policy" in readme
    [over] = re.findall(r"against the best single depth, geometric mean \| >= 1.05 \| ([\d.]+) \|", PAGE)
    assert f"{over} times those of the best single depth" in readme
    assert f"Where a draft is useless it serves {over_none('throughput', 0.0)} of what no speculation does" in readme


def test_the_simulator_on_newer_times() -> None:
    found = results("simulation/calibrated.json")
    means = [suite["policies"]["throughput"]["mean"] for suite in found["suites"].values()]
    missed = [target for target in found["targets"] if not target["met"]]
    page = " ".join((ROOT / "docs" / "simulator.md").read_text().split())
    assert f"policy has {min(means):.3f} to {max(means):.3f} of the oracle in the mean of a suite" in page
    assert f"{len(found['targets']) - 1} of {len(found['targets'])} targets are met" in page
    assert [(one["suite"], one["figure"]) for one in missed] == [("profile-15", "share of oracle, worst trace")]
    assert f"{missed[0]['measured']:.3f} where {missed[0]['bound']} is wanted" in page


def test_steady_load() -> None:
    hourly = [switches for draws in switches_hourly().values() for switches in draws]
    page = " ".join((ROOT / "docs" / "how-it-decides.md").read_text().split())
    assert f"the policy switches {min(hourly)} to {max(hourly)} times an hour" in page


def test_costs() -> None:
    policies = results("policy/overhead.json")["policies"]
    ours, theirs, sync = policies["throughput"], policies["SGLang EMA"], policies["throughput hand-over"]
    assert f"median {ours['median_us']:.1f} us, p99 {ours['p99_us']:.0f} us" in PAGE
    assert f"(SGLang's EMA: {theirs['median_us']:.1f} us, {theirs['p99_us']:.1f} us)" in PAGE
    assert f"median {sync['median_us']:.0f} us, p99 {sync['p99_us']:.0f} us" in PAGE
    size = results("policy/memory.json")["bytes_by_rounds"]["1000000"]
    assert f"1,000,000 rounds | {size / 1000:.0f} kB |" in PAGE
    look = re.search(r"open page \| ([\d.]+ to [\d.]+ ms) of", PAGE)
    assert look and look[1] in (RESULTS / "page" / "README.md").read_text()
