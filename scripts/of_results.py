"""Documentation tables generated from benchmarks/results."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, geometric_mean, median
from typing import Any

from benchmarks import compare
from benchmarks.architectures import FAILED, FAMILIES, REFUSED, verdict_on
from benchmarks.compare import best_static, case_of, is_static, rates, shares
from benchmarks.gates import commit_of
from benchmarks.harness.texts import DIFFERENT, EQUAL, TIE
from benchmarks.harness.turns import Ratio, best_single, mean_rates, mean_ratio, over, rates_by_name

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"
Lines = Iterator[str]
Content = dict[str, Any]
OURS, NONE, EMA = "throughput", "none", "sglang-ema"


READ: set[Path] = set()
"""The files that tables were made from so far, for scripts/ledger.py."""


def load(*names: str | Path) -> Any:
    """Return a file's content."""
    path = RESULTS.joinpath(*names)
    READ.add(path)
    return json.loads(path.read_text(encoding="utf-8"))


def rows(path: Path) -> list[Content]:
    """Return the rows of a file of `benchmarks.policies`."""
    READ.add(path)
    return compare.rows(path)


def table(*head: object) -> Lines:
    """Yield the head of a table."""
    yield row(*head).replace("|  |", "| |")
    yield "|---" * len(head) + "|"


def row(*cells: object) -> str:
    """Return a line of a table; None is an empty cell."""
    return "| " + " | ".join("" if cell is None else str(cell) for cell in cells) + " |"


def steps(number: object) -> str:
    """Return "1 step", "3 steps"."""
    return f"{number} step{'s' * (str(number) != '1')}"


# -- docs/measurements.md and README.md: recorded text, simulation ----------------------------------------------------

POLICIES = (OURS, "ema", "ema-all", "static-3", "static-0")


def first_figure() -> Lines:
    """Yield tokens/s of the policy over a user's other options, by batch size, from the newest run of the gates."""
    run = load("served", "gates.json")
    found = batches(run["scenes"]["replay"])
    yield from table("tokens/s of the `throughput` policy over", *(f"batch {size}" for size in found))
    rates = {size: mean_rates(turns) for size, turns in found.items()}
    best = {size: max(filter(drafts, rate), key=lambda name: rate[name]) for size, rate in rates.items()}
    for rival, names in (
        ("no drafting (0 steps held)", dict.fromkeys(found, "static-0")),
        ("the best static depth", best),
    ):
        yield row(rival, *(f"{rates[size][OURS] / rates[size][name]:.2f}" for size, name in names.items()))
    day = run["scenes"]["replay"]["date"][:10]
    commits = " and ".join(dict.fromkeys(commit_of(run["scenes"]["replay"], str(size))[:8] for size in found))
    yield ""
    yield f"Measured on {day} at [{commits}](benchmarks/results/served/gates.json)."


def gates() -> Lines:
    """Yield every gate of the policy with its bound, the measured value, and what an oracle reaches in hindsight.

    Gates of one figure and one bound that differ in the text, the profile or the batch size share a row.
    """
    found: dict[tuple[str, str], dict[str, tuple[str, str]]] = {}
    for gate in load("real", "real.json")["gates"]:
        if gate["bound"] is None:
            continue
        text, mark, figure = gate["figure"].partition(": ")
        if not (mark and text.startswith("smollm2")):
            figure, mark, text = gate["figure"].rpartition(", ")
            if not text.startswith(("batch", "h200")) or "phases" in figure:
                figure, text = gate["figure"], ""
        aim = f"{'<=' if gate.get('at') == 'most' else '>='} {gate['bound']:g}"
        measured = f"{gate['measured']:.4g}"
        hindsight = f"{gate['hindsight']:.4g}" if "hindsight" in gate else ""
        told = (measured if gate.get("met", True) else f"**{measured}**", hindsight)
        found.setdefault((figure, aim), {})[text] = told
    yield from table("Figure", "Of", "Aim", "Measured", "In hindsight")
    for (figure, aim), values in found.items():
        of = "; ".join(values)
        cells = ("; ".join(filter(None, column)) for column in zip(*values.values(), strict=True))
        yield row(figure, of, aim, *cells)


def simulation() -> Lines:
    """Yield the policies' mean and worst share of the oracle."""
    yield from table("Suite", *POLICIES)
    for name, suite in load("simulation", "simulate.json")["suites"].items():
        scores = [suite["policies"][policy] for policy in POLICIES]
        yield row(name, *(f"{score['mean']:.3f}, {score['worst']:.3f}" for score in scores))


LEFT_OUT = {
    "no_censoring": "censoring: positions that were not drafted count as rejected",
    "no_shrinkage": "shrinkage toward the previous position",
    "no_levels": "levels: a request's past says nothing about its future",
    "no_cost": "cost: every round takes as long",
    "no_clock": "the clock: the profile is never corrected",
    "no_hearing": "shadow acceptance",
    "no_probing": "probes",
}
"""By the name in `benchmarks.ablation`."""


def ablation() -> Lines:
    """Yield what the policy's share of the oracle loses without each part, in all suites and at the extremes."""
    suites = load("simulation", "ablation.json")["suites"]
    yield from table("Without", "lost, mean of all suites", "most", "least")
    for name, about in LEFT_OUT.items():
        losses = []
        for suite, one in suites.items():
            means = one["policies"]
            losses.append((means[OURS]["mean"] - means[f"benchmarks.ablation:{name}"]["mean"], suite))
        ends = (f"{lost:z.3f} ({suite})" for lost, suite in (max(losses), min(losses)))
        yield row(about, f"{fmean(lost for lost, _ in losses):z.3f}", *ends)


# -- docs/measurements.md: simulated acceptance on an H200 -----------------------------------------------------------

H200 = RESULTS / "h200"
ZERO_STEPS = {
    "servers in turn": sorted((H200 / "zero-steps-in-turn").glob("*.json")),
    "in turn, another GPU": sorted((H200 / "zero-steps-in-turn-second-gpu").glob("*.json")),
    "side by side on one GPU": [H200 / "zero-steps.json"],
}
"""By how the compared servers share a GPU."""


def h200() -> Lines:
    """Yield the targets and the measured values."""
    cells = _rates([H200 / "cells.json"], "cells")
    switched = _rates([H200 / "switching.json"], "acceptance", "load")
    stationary = {case: rate for case, rate in cells[OURS].items() if dict(case)["p"]}
    against = shares(stationary, best_static(cells))
    yield from table("Target", "Aim", "Measured")
    head = "16 cells, geometric mean against each cell's best static depth"
    yield row(head, ">= 0.98", f"{geometric_mean(against):.3f}")
    yield row("worst of the 16 cells", ">= 0.95", f"{min(against):.3f}")
    best = {case: rate for case, rate in best_static(cells).items() if dict(case)["p"]}
    single_name = _single({name: {case: one[case] for case in one if case in best} for name, one in cells.items()})
    others = shares(cells[single_name], best)
    head = f"the same with the best single depth ({single_name[-1]} steps): mean, worst"
    yield row(head, "", f"{geometric_mean(others):.3f}, {min(others):.3f}")
    single = switched[_single(switched)]
    for rival, aim, reference in (
        ("the best single depth, geometric mean", ">= 1.05", single),
        ("each case's best depth, known beforehand", "", best_static(switched)),
        ("SGLang's own EMA, geometric mean", ">= 1.25", switched[EMA]),
    ):
        over_it = geometric_mean(shares(switched[OURS], reference))
        yield row(f"acceptance and load switching against {rival}", aim, f"{over_it:.3f}")
    worst = []
    for how, paths in ZERO_STEPS.items():
        found = _rates(paths, "cells")
        ratios = {dict(case)["batch_size"]: rate / found[NONE][case] for case, rate in found["static-0"].items()}
        head = f"zero steps against no speculation, batch {', '.join(map(str, ratios))}; {how}"
        yield row(head, ">= 0.985", ", ".join(f"{one:.3f}" for one in ratios.values()))
        worst.append(f"{min(shares(found[OURS], found[NONE])):.3f}")
    head = "worst cell against no speculation, drafts always wrong; by the same three ways"
    yield row(head, ">= 0.98", ", ".join(worst))
    lost = [one["first_over_second"] for one in rows(H200 / "first-use.json")]
    head = f"first use of a depth against its second, {len(lost)} passes"
    yield row(head, "loses < 1%", f"median {median(lost):.3f}, worst {min(lost):.3f}")
    startup = load("h200", "zero-steps-in-turn", "throughput.json")["servers"][OURS]["startup"]
    built = f"{startup['tiers_total']['seconds']:.1f}; {startup['tiers_total']['gb']:.2f}"
    yield row("five depths beside the launch depth: seconds; GB", "13.5; 0.5", built)
    steady = [one for name in ("steady-8.json", "steady-32.json") for one in rows(H200 / name)]
    sizes = " and ".join(str(one["case"]["batch_size"]) for one in steady)
    head = f"ITL p95 in steady load, against the same static depth, batch {sizes}"
    yield row(head, "<= 1.02", ", ".join(f"{one['itl_p95_against_static']:.3f}" for one in steady))


def switching() -> Lines:
    """Yield tokens/s while acceptance or load switches, by contender, and ours against the others."""
    every = rows(H200 / "switching.json")
    cases = [(f"batch {one['case']['batch_size']}", one) for one in every if one["workload"] == "acceptance"]
    cases += [("load", one) for one in every if one["workload"] == "load"]
    heads = list(dict.fromkeys(head for head, _ in cases))
    by = {(head, one["contender"]): one["tokens_per_second"] for head, one in cases}
    yield from table("", *heads)
    for name in (OURS, EMA, "static-3", "static-5", "static-7"):
        yield row(_titled(name), *(f"{by[head, name]:.0f}" for head in heads))
    best = [max(rate for (at, name), rate in by.items() if at == head and is_static(name)) for head in heads]
    rivals = {"the best single depth of each": best, "SGLang's EMA": [by[head, EMA] for head in heads]}
    for title, reference in rivals.items():
        ours = (f"{by[head, OURS] / rate:.3f}" for head, rate in zip(heads, reference, strict=True))
        yield row(f"throughput over {title}", *ours)


def open_loop() -> Lines:
    """Yield latencies of Poisson arrivals, the mean of the passes."""
    columns = [
        *(("time_to_first_token", key, 0) for key in ("p50_ms", "p95_ms")),
        *(("inter_token_latency", key, 1) for key in ("p50_ms", "p95_ms")),
        *(("latency", key, 0) for key in ("p50_ms", "p95_ms", "p99_ms")),
    ]
    yield from table("Load", "", "TTFT p50", "p95", "ITL p50", "p95", "latency p50", "p95", "p99")
    for one in sorted(rows(H200 / "arrivals.json"), key=lambda one: str(case_of(one))):
        cells = (f"{fmean(taken[what][key] for taken in one['passes']):.{n}f}" for what, key, n in columns)
        yield row(f"{one['case']['share']:.0%}", _titled(one["contender"]), *cells)


def _rates(paths: Sequence[Path], *workloads: str) -> Any:
    return rates((one["contender"], one) for path in paths for one in rows(path) if one["workload"] in workloads)


def _single(found: Mapping[str, Mapping[Any, float]]) -> str:
    """Return the one static depth that is best over all cases, by geometric mean: a user would set it once."""
    static = {name: cases for name, cases in found.items() if is_static(name)}
    most = max(len(cases) for cases in static.values())
    complete = {name: geometric_mean(cases.values()) for name, cases in static.items() if len(cases) == most}
    return max(complete, key=lambda name: complete[name])


def _titled(name: str) -> str:
    return "SGLang's EMA, stock server" if name == EMA else steps(name[-1]) if is_static(name) else name


# -- docs/performance.md and docs/measurements.md: served --------------------------------------------------------------

TITLES = {OURS: "`throughput`", NONE: "no speculation", EMA: "SGLang's EMA"}


def title(name: str) -> str:
    """Return a contender's name."""
    return TITLES.get(name) or (steps(name.removeprefix("static-")) if is_static(name) else name)


def drafts(name: str) -> bool:
    """Return whether this is a depth that drafts, held throughout; zero steps stand for "no speculation"."""
    return is_static(name) and name != "static-0"


def batches(content: Content) -> dict[int, list[Content]]:
    """Return the turns by batch size, only for sizes in which our server finished one."""
    found = {int(size): turns for size, turns in content.get("batches", {}).items()}
    return {size: turns for size, turns in sorted(found.items()) if OURS in rates_by_name(turns)}


def race(content: Content) -> Lines:
    """Yield our tokens/s by batch size, and over a user's other options, with standard errors."""
    found = batches(content)
    means = {size: mean_rates(turns) for size, turns in found.items()}
    one = best_single([{name: rate for name, rate in each.items() if drafts(name)} for each in means.values()])
    every = f"over {title(one) if one else 'a single depth'}, the best over all"
    raced = {OURS, *(name for rate in means.values() for name in rate)}
    against = [name for name in (NONE, EMA) if name in raced]
    heads = ["over the best static depth of this batch size", every, *(f"over {title(name)}" for name in against)]
    yield from table("batch", "tokens/s", *heads, "turns")
    columns: list[list[Ratio]] = [[] for _ in heads]
    for size, turns in found.items():
        rate = means[size]
        best = max(filter(drafts, rate), key=lambda name: rate[name], default=None)
        ratios = [over(turns, name, OURS) if name else None for name in (best, one, *against)]
        for column, value in zip(columns, ratios, strict=True):
            column.extend([value] if value else [])
        cells = [str(value) if value else "" for value in ratios]
        cells[0] += f" ({title(best)})" if best else ""
        yield row(size, f"{rate[OURS]:.0f}", *cells, len(turns))
    whole = (mean_ratio(column) if len(column) == len(found) > 0 else "" for column in columns)
    yield "| all, geometric mean | | " + " | ".join(map(str, whole)) + " | |"


def replayed() -> Lines:
    """Yield every gate and what the policy reached."""
    heads = ["over the best static depth", "gate", "by its choices", "worst turn", "gate", "turns", "commit"]
    yield from table("scene", "batch", *heads)
    run = load("served", "gates.json")
    for one in run["gates"]:
        name = one["scene"]
        if "best" not in one:
            yield row(name, one["batch"], "not measured", one["gate"], None, None, one["turn_gate"], one["turns"], None)
            continue
        reached = f"{one['reached']:.3f} ± {one['error']:.3f} ({title(one['best'])})"
        reached += "" if one["met"] else ", **missed**"
        chosen, worst = (f"{one[key]:.3f}" for key in ("choices", "worst_turn"))
        commit = commit_of(run["scenes"][name], str(one["batch"]))[:8]
        yield row(name, one["batch"], reached, one["gate"], chosen, worst, one["turn_gate"], one["turns"], commit)


def replayed_rates() -> Lines:
    """Yield tokens/s of every contender in the gates' replay."""
    yield from every_rate(load("served", "gates.json")["scenes"]["replay"])


def latent_rates() -> Lines:
    """Yield tokens/s of every contender on the shape with latent attention, and the policy's over the best depth's."""
    run = load("served", "latent.json")
    yield from every_rate(run["scenes"]["latent"])
    yield row("`throughput` over the best depth", *(f"{gate['reached']:.3f}" for gate in run["gates"]))


def every_rate(content: Content) -> Lines:
    """Yield tokens/s of every contender by batch size."""
    found = {size: mean_rates(turns) for size, turns in batches(content).items()}
    names = dict.fromkeys(name for rate in found.values() for name in rate)
    yield from table("", *(f"batch {size}" for size in found))
    for name in sorted(names, key=lambda name: (name == OURS, name == EMA, name != NONE, len(name), name)):
        yield row(title(name), *(f"{rate[name]:.0f}" if name in rate else "" for rate in found.values()))


def equality(content: Content) -> Lines:
    """Yield how many greedy outputs equal those without speculation, and how near ties the others were."""
    yield from table("steps", "questions", "equal", "ties", "different", "largest gap, nats", "rounds", "switches")
    for name, one in content.items():
        if isinstance(one, dict) and "equal" in one:
            cells = [one[key] for key in ("questions", "equal", "tie", "different")]
            yield row(name, *cells, f"{one['worst_gap']:.3f}", one["rounds"], one["switches"])


def host_time(content: Content) -> Lines:
    """Yield our microseconds per round on the scheduler's thread, and held steps against stock SGLang."""
    found = {size: _told_apart(one) for size, one in content.get("host_us_a_round", {}).items()}
    yield from table("", *(f"batch {size}" for size in found))
    for key, head in (
        ("ours", "on top of SGLang's own, us a round"),
        ("in_place_of_sglang_s", "in place of SGLang's, us"),
    ):
        yield row(head, *(f"{one[key]:.0f}" for one in found.values()))
    for name, part in content.items():
        if name.startswith("steps ") and isinstance(part, dict):
            turns = part.get("batches", {})
            cells = (over(turns[size], "stock", "held") if size in turns else None for size in found)
            yield row(f"{steps(name.removeprefix('steps '))} held, over stock SGLang", *cells)


def _told_apart(one: Content) -> Content:
    """Return both sums; for a file from before they were separate, use the largest hooks, which it has by name."""
    if one["in_place_of_sglang_s"] or "by_hook" not in one:
        return one
    instead = sum(hook["us"] for name, hook in one["by_hook"].items() if ": fast_path." in name)
    return {"ours": one["ours"] - instead, "in_place_of_sglang_s": instead}


SERVED: dict[str, tuple[str, Callable[[Content], Lines]]] = {
    "served-greedy": ("greedy", race),
    "served-sampled": ("sampled", race),
    "served-equal": ("equal", equality),
    "served-host": ("host-time", host_time),
    "served-blocks": ("replay-blocks", race),
    "served-blocks-rates": ("replay-blocks", every_rate),
}
"""By name of the place in the page: the phase's file and the function that makes its table."""


# -- docs/compatibility.md ------------------------------------------------------------------------------------------


def campaign() -> Lines:
    """Yield how much the campaign tried, and what was lost."""
    report = load("campaign", "report.json")
    tried = sum(sum(stage["tried"].values()) for stage in report["stages"].values())
    yield (
        f"`{report['command']}`, {report['hardware']}, commit {report['commit'][:8]}: {tried:,} tried, "
        f"{report['lost']} lost ([report](../benchmarks/results/campaign/report.md))."
    )


def gpu_tests(path: Path = RESULTS / "gpu-tests.json") -> Lines:
    """Yield how many tests of tests/gpu passed where, as `make test-gpu` found it, and a row for each other test."""
    tests: Content = load(path)["tests"]
    passed = Counter(
        f"{one['on']}, {one['date']}, {str(one['commit'])[:8]}" for one in tests.values() if one["outcome"] == "passed"
    )
    places = "; ".join(f"{count} on {where}" for where, count in passed.most_common())
    yield f"{passed.total()} of {len(tests)} tests passed: {places}."
    others: dict[tuple[str, ...], list[str]] = {}
    for test, one in tests.items():
        if one["outcome"] != "passed":
            name, _, case = test.removeprefix("tests/gpu/").partition("[")
            key = (
                name,
                one["outcome"],
                (one["lines"] or [""])[0].partition("; the last lines")[0].partition(", after")[0],
            )
            others.setdefault(key, []).append(case.removesuffix("]"))
    if others:
        yield ""
        yield from table("Test", "Outcome", "Why")
    for (name, outcome, why), cases in others.items():
        of = ", ".join(filter(None, cases))
        yield row(f"`{name}`{f' ({of})' if of else ''}", outcome, why)


def architectures(folder: Path = RESULTS / "architectures") -> Lines:
    """Yield a row for each measured family, in the order of the families."""
    found = {path.stem: load(path) for path in folder.glob("*.json")}
    records = [found[family.name] for family in FAMILIES if family.name in found]
    if not records:
        yield "Not measured yet."
        return
    devices = sorted({f"{record['gpu']}, {record['date']}" for record in records})
    yield f"`python -m benchmarks.architectures`, {'; '.join(devices)}."
    yield ""
    yield from table(
        "Architecture", "Models", "Draft", "Attention", "Verdict", "Depths", "equal, ties, different texts",
        "unlikely tokens, worst run, the reference",
    )  # fmt: skip
    for record in records:
        runs, verdict = record.get("runs", []), verdict_on(record)
        why = str({FAILED: record.get("error"), REFUSED: record.get("reason")}.get(verdict) or "")
        texts = ", ".join(str(sum(run[kind] for run in runs)) for kind in (EQUAL, TIE, DIFFERENT))
        yield row(
            record["family"], record["models"], f"{record['algorithm']}, {record['draft']}",
            record.get("attention_backend") or "?",
            f"{verdict}: {why.replace('|', '/')[:200]}".replace("\n", " ") if why else verdict,
            ", ".join(map(str, record.get("depths", []))), texts if runs else "", _unlikely(record) if runs else "",
        )  # fmt: skip


def _unlikely(record: Content) -> str:
    worst = max(run["unlikely_tokens"] for run in record["runs"])
    return f"{worst:.1%}, {record['reference']['unlikely_tokens']:.1%}"


# -- docs/performance.md: attention DP, lookups -----------------------------------------------------------------------


def attention_dp() -> Lines:
    """Yield what two GPUs served, by load: the policy's tokens/s, over the best held depth, and over none."""
    heads = ("tokens/s", "over the best held depth", "over no speculation")
    yield from table("load, and requests of each rank", *heads)
    for scene, one in load("attention_dp_served", "rates.json")["ratios"].items():
        best = f"{one['policy_over_best']:.3f} ({steps(one['best'].removeprefix('static-'))})"
        yield row(scene, f"{one['tokens_per_second']['policy']:.0f}", best, f"{one['policy_over_none']:.2f}")


LOOKED_UP = {
    "smollm2-greedy, repetitions cut": "Spec-Bench, SmolLM2, each answer up to its first loop",
    "a quarter edits": "three quarters of that, a quarter edits",
    "smollm2-greedy": "Spec-Bench, whole answers",
    "tiny": "the tiny pair's prompts",
    "smollm2-edits": "edits of whole files",
}


def lookup_replay() -> Lines:
    """Yield the policy's gain from lookups by text and batch size: mean and worst of scenes and profiles."""
    content = load("lookups", "replay.json")
    found: dict[tuple[str, int], list[float]] = {}
    for texts, _, batch, _, _, policy, looked_up in content["cells"]:
        found.setdefault((texts, batch), []).append(looked_up / policy)
    sizes = sorted({batch for _, batch in found})
    yield from table("recorded text", f"batch {sizes[0]}", *sizes[1:])
    for texts, shown in LOOKED_UP.items():
        rates = (found[texts, batch] for batch in sizes)
        yield row(shown, *(f"{fmean(all_of):.3f} ({min(all_of):.3f})" for all_of in rates))


def ngram_prompts() -> Lines:
    """Yield tokens per round by drafts of a tree, without and with prompts in NGRAM's corpus."""
    found = load("other_drafts", "ngram-prompts.json")["tokens_a_round"]
    yield from table("drafts of a tree", *(one["drafts"] for one in found))
    yield row("the corpus has what was written, as in stock SGLang", *(f"{one['without']:.2f}" for one in found))
    yield row("and prompts", *(f"{one['with']:.2f}" for one in found))


def start_up(content: Content) -> Lines:
    """Yield how each server's start spends its seconds, and its first sampled requests."""
    told = {(turn, name): one for turn, servers in content["turns"].items() for name, one in sorted(servers.items())}
    turns = {"fresh": "fresh host", "again": "again"}
    yield from table("seconds", *(f"{title(name)}, {turns[turn]}" for turn, name in told))
    for part in next(iter(told.values()))["parts_s"]:
        yield row(part, *(f"{one['parts_s'][part]:.0f}" for one in told.values()))
    yield row("**until ready**", *(f"**{one['ready_s']:.0f}**" for one in told.values()))
    if not all(one["sampled_requests_s"] for one in told.values()):
        return
    for name, number in (("first", 0), ("tenth", -1)):
        yield row(f"the {name} sampled request", *(f"{one['sampled_requests_s'][number]:.2f}" for one in told.values()))


PERFORMANCE = ("served-greedy", "served-sampled")
BLOCKS = ("served-blocks", "served-blocks-rates")


def performance() -> dict[str, Lines]:
    """Return the tables of docs/performance.md."""
    return {
        "served-replay": replayed(), "served-replay-rates": replayed_rates(),
        "served-latent": latent_rates(), **_served(*PERFORMANCE),
        "start-up": start_up(load("start_up", "start-up.json")),
        "attention-dp-served": attention_dp(), "lookup-replay": lookup_replay(), "ngram-prompts": ngram_prompts(),
    }  # fmt: skip


def block_drafters() -> dict[str, Lines]:
    """Return the tables of docs/block-drafters.md."""
    return _served(*BLOCKS)


def measurements() -> dict[str, Lines]:
    """Return the tables of docs/measurements.md."""
    return {
        "real-gates": gates(), "simulation": simulation(), "h200": h200(),
        "switching": switching(), "open-loop": open_loop(), "ablation": ablation(),
        **_served(*(SERVED.keys() - {*PERFORMANCE, *BLOCKS})),
    }  # fmt: skip


def _served(*names: str) -> dict[str, Lines]:
    return {name: make(load("served", f"{file}.json")) for name in names for file, make in [SERVED[name]]}
