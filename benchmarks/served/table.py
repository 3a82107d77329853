"""What the phases' files say, as tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Any

from benchmarks.served.contenders import BUDGETS
from benchmarks.served.race import OURS, mean_rate, rates_by_name
from benchmarks.served.ratios import Ratio, best_single, mean_ratio, ratio

Content = dict[str, Any]
NONE, EMA = "none", "sglang-ema"
TITLES = {OURS: "`throughput`", NONE: "no speculation", EMA: "SGLang's EMA"}


def is_static(name: str) -> bool:
    """Return whether this is a depth that drafts, held for good; zero steps are what "no speculation" stands for."""
    return name.startswith("static-") and name != "static-0"


def is_pair(name: str) -> bool:
    """Return whether this is a pair of steps and a verify budget, held for good."""
    return "-verified-" in name


def title(name: str) -> str:
    """Return how a contender is called in a table."""
    steps = name.removeprefix("static-")
    return TITLES.get(name, f"{steps} step{'s' * (steps != '1')}" if name.startswith("static-") else name)


def over(turns: Sequence[Content], other: str, ours: str = OURS) -> Ratio | None:
    """Return ours over *other*, over the turns that both finished; None where there are none."""
    rates = rates_by_name(turns)
    both = sorted(set(rates.get(ours, {})) & set(rates.get(other, {})))
    return ratio([rates[ours][turn] for turn in both], [rates[other][turn] for turn in both]) if both else None


def means(turns: Sequence[Content]) -> dict[str, float]:
    """Return each contender's mean rate."""
    return {name: mean_rate(turns, name) for name in rates_by_name(turns)}


def batches(content: Content) -> dict[int, list[Content]]:
    """Return the turns by batch size, those sizes alone in which our server finished one."""
    found = {int(size): turns for size, turns in content.get("batches", {}).items()}
    return {size: turns for size, turns in sorted(found.items()) if OURS in rates_by_name(turns)}


def single(content: Content) -> str | None:
    """Return the static depth that is best over all batch sizes together; None where none was measured in all."""
    cases = [
        {name: rate for name, rate in means(turns).items() if is_static(name)} for turns in batches(content).values()
    ]
    return best_single(cases) if cases and set.intersection(*map(set, cases)) else None


def race(content: Content) -> Iterator[str]:
    """Yield tokens/s of ours by batch size, and over what a user could run instead, with standard errors."""
    one = single(content)
    heads = [
        "the best static depth of this batch size",
        f"{title(one) if one else 'a single depth'}, the best over all",
    ]
    others = [NONE, EMA]
    yield f"| batch | tokens/s | over {' | over '.join([*heads, *map(title, others)])} | turns |"
    yield f"|---|{'---|' * (len(heads) + len(others) + 2)}"
    columns: list[list[Ratio]] = [[] for _ in range(len(heads) + len(others))]
    for size, turns in batches(content).items():
        rates = means(turns)
        best = max((name for name in rates if is_static(name)), key=lambda name: rates[name], default=None)
        found = [over(turns, name) if name else None for name in (best, one, *others)]
        for column, value in zip(columns, found, strict=True):
            column.extend([value] if value else [])
        cells = [str(value) if value else "" for value in found]
        cells[0] += f" ({title(best)})" if best else ""
        yield f"| {size} | {rates[OURS]:.0f} | {' | '.join(cells)} | {len(turns)} |"
    cells = [str(mean_ratio(column)) if len(column) == len(batches(content)) > 0 else "" for column in columns]
    yield f"| all, geometric mean | | {' | '.join(cells)} | |"


def stock(content: Content) -> Iterator[str]:
    """Yield the rate of no speculation by batch size, and stock SGLang's static depths over it."""
    found = {int(size): turns for size, turns in content.get("batches", {}).items()}
    yield f"| | {' | '.join(f'batch {size}' for size in found)} |\n|---|{'---|' * len(found)}"
    yield f"| no speculation, tokens/s | {' | '.join(f'{mean_rate(turns, NONE):.0f}' for turns in found.values())} |"
    for name in filter(is_static, dict.fromkeys(name for turns in found.values() for name in rates_by_name(turns))):
        cells = [over(turns, NONE, name) for turns in found.values()]
        yield f"| {title(name)}, over it | {' | '.join(str(cell or '') for cell in cells)} |"
    yield f"| turns | {' | '.join(str(len(turns)) for turns in found.values())} |"


def rates(content: Content) -> Iterator[str]:
    """Yield tokens/s of every contender by batch size."""
    found = {size: means(turns) for size, turns in batches(content).items()}
    names = list(dict.fromkeys(name for rate in found.values() for name in rate))
    order = sorted(names, key=lambda name: (name == OURS, name == EMA, name != NONE, name))
    yield f"| | {' | '.join(f'batch {size}' for size in found)} |\n|---|{'---|' * len(found)}"
    for name in order:
        cells = [f"{rate[name]:.0f}" if name in rate else "" for rate in found.values()]
        yield f"| {title(name)} | {' | '.join(cells)} |"


def budgets(content: Content) -> Iterator[str]:
    """Yield by batch size what the policy serves without and with verify budgets, and the best pair that is held, over
    the best static depth of that batch size, with standard errors."""
    yield "| batch | the best static depth, tokens/s | `throughput` | with budgets | the best held pair | turns |"
    yield "|---|---|---|---|---|---|"
    for size, turns in batches(content).items():
        rates = means(turns)
        best, pair = (max(filter(of_kind, rates), key=rates.__getitem__) for of_kind in (is_static, is_pair))
        held = "{} steps, {} verified".format(*pair.split("-verified-"))
        cells = [str(over(turns, best, name)) for name in (OURS, BUDGETS, pair)]
        cells[-1] += f" ({held})"
        yield f"| {size} | {rates[best]:.0f} ({title(best)}) | {' | '.join(cells)} | {len(turns)} |"


def poisson(content: Content) -> Iterator[str]:
    """Yield latencies of every contender, and the mean latency over that of ours on the same requests."""
    yield "| | latency p50, ms | p95 | first token p50 | p95 | mean latency over that of `throughput` |"
    yield "|---|---|---|---|---|---|"
    turns = content.get("turns", [])
    for name in dict.fromkeys(name for turn in turns for name in turn["passes"]):
        passes = [turn["passes"][name] for turn in turns if name in turn["passes"]]
        cells = [
            f"{fmean(one[what][key] for one in passes):.0f}"
            for what in ("latency", "first_token")
            for key in ("p50_ms", "p95_ms")
        ]
        both = [turn["passes"] for turn in turns if {name, OURS} <= set(turn["passes"])]
        pairs = [pair for one in both for pair in zip(one[name]["group_ms"], one[OURS]["group_ms"], strict=True)]
        against = ratio([a for a, _ in pairs], [b for _, b in pairs]) if pairs and name != OURS else ""
        yield f"| {title(name)} | {' | '.join(cells)} | {against} |"


def equality(content: Content) -> Iterator[str]:
    """Yield how many greedy outputs are those of no speculation, and how near ties the others were."""
    yield "| steps | questions | equal | different | within 0.125 nats | largest gap, nats | rounds | switches |"
    yield "|---|---|---|---|---|---|---|---|"
    for name, found in content.items():
        if isinstance(found, dict) and "equal" in found:
            gap = f"{max(found['largest_gaps'], default=0.0):.3f}" if not found["beyond_the_likeliest"] else "beyond"
            cells = [found["questions"], found["equal"], found["different"], found["ties"]["0.1251"], gap]
            yield f"| {name} | {' | '.join(map(str, cells))} | {found['rounds']} | {found['switches']} |"


def host_time(content: Content) -> Iterator[str]:
    """Yield microseconds a round of ours on the scheduler's thread, and held steps against stock SGLang."""
    found = {int(size): _told_apart(one) for size, one in content.get("host_us_a_round", {}).items()}
    sizes = sorted(found)
    yield f"| | {' | '.join(f'batch {size}' for size in sizes)} |\n|---|{'---|' * len(sizes)}"
    for key, head in (
        ("ours", "on top of SGLang's own, us a round"),
        ("in_place_of_sglang_s", "in place of SGLang's, us"),
    ):
        yield f"| {head} | {' | '.join(f'{found[size][key]:.0f}' for size in sizes)} |"
    for name, part in content.items():
        if name.startswith("steps ") and isinstance(part, dict):
            turns = {int(size): turns for size, turns in part.get("batches", {}).items()}
            cells = [over(turns[size], "stock", "held") if size in turns else None for size in sizes]
            steps = title(f"static-{name.removeprefix('steps ')}")
            yield f"| {steps} held, over stock SGLang | {' | '.join(str(cell or '') for cell in cells)} |"


def _told_apart(one: Content) -> Content:
    """Return both sums; of a file from before they were told apart, by the largest hooks, which it has by name."""
    if one["in_place_of_sglang_s"] or "by_hook" not in one:
        return one
    instead = sum(hook["us"] for name, hook in one["by_hook"].items() if ": fast_path." in name)
    return {"ours": one["ours"] - instead, "in_place_of_sglang_s": instead}
