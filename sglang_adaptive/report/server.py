"""The sections of server benchmarks: each contender as a share of every case's best static depth."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import Any

from sglang_adaptive.report.blocks import Block, Facts, Heading, Picture, Section, Table, Text
from sglang_adaptive.report.html import dot_chart
from sglang_adaptive.report.results import Result, source

Case = tuple[tuple[str, Any], ...]
"""Conditions of a row's measurement, as pairs: batch size, p and so on."""


@dataclass(frozen=True, slots=True)
class Row:
    """One contender in one case of one workload."""

    workload: str
    contender: str
    case: Case
    tokens_per_second: float
    more: Mapping[str, Any]
    """The file's row, for keys that only some workloads have."""


def rows(results: Sequence[Result]) -> list[Row]:
    """Return the rows of *results*; a contender that several files measured in one case carries the file's name."""
    owned = [(Path(result.name).stem, row) for result in results for row in _of(result)]
    owners: dict[tuple[str, str, Case], set[str]] = {}
    for file, row in owned:
        owners.setdefault((row.workload, row.contender, row.case), set()).add(file)
    shared = {(workload, contender) for (workload, contender, _), files in owners.items() if len(files) > 1}
    return [
        Row(row.workload, f"{row.contender} ({file})", row.case, row.tokens_per_second, row.more)
        if (row.workload, row.contender) in shared
        else row
        for file, row in owned
    ]


def is_static(contender: str) -> bool:
    """Return whether a contender is a single depth."""
    return contender.startswith("static-")


def case_in_words(case: Case) -> str:
    """Return a case as named in a table."""
    short = {"batch_size": "batch", "requests_per_second": "requests/s", "phase_seconds": "phase s"}
    shown = [(short.get(key, key), value) for key, value in case if key not in ("decay", "capacity_of", "phases")]
    return ", ".join(f"{key} {_value(value)}" for key, value in shown if value is not None)


def _of(result: Result) -> Iterator[Row]:
    found = [
        Row(row["workload"], row["contender"], _case(row["case"]), row["tokens_per_second"], row)
        for row in result.data["rows"]
    ]
    known = list(dict.fromkeys(row.case for row in found))
    for row in found:
        for case in _cases(row.case, known):
            yield Row(row.workload, row.contender, case, row.tokens_per_second, row.more)


def _case(case: Mapping[str, Any]) -> Case:
    return tuple((key, tuple(value) if isinstance(value, list) else value) for key, value in case.items())


def _cases(case: Case, known: Sequence[Case]) -> Sequence[Case]:
    """Return the cases that a row covers: without drafts p makes no difference, so null is every p."""
    if "p" not in dict(case) or dict(case)["p"] is not None:
        return [case]
    same = [one for one in known if dict(one).get("p") is not None and {**dict(one), "p": None} == dict(case)]
    return same or [case]


def _value(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


Rates = dict[str, dict[Case, float]]
"""Tokens/s by contender and case; the mean if a file has a case more than once."""

FIGURES = {
    "first_over_second": ("first use over second", ".3f"),
    "switches_per_hour": ("switches an hour", ".0f"),
    "itl_p95_against_static": ("ITL p95 against the same static depth", ".3f"),
}
"""Other reported figures of some workloads: key of a row, its name, its format."""

LATENCIES = {"time_to_first_token": "TTFT", "inter_token_latency": "ITL"}
"""Latencies of a pass, as percentiles in milliseconds."""


def sections(results: Sequence[Result]) -> Iterator[Section]:
    """Yield a section for each comparable group of results."""
    groups: dict[tuple[str | None, ...], list[Result]] = {}
    for result in results:
        facts = source(result.data)
        groups.setdefault((facts.get("hardware"), facts.get("acceptance")), []).append(result)
    for (hardware, acceptance), group in groups.items():
        blocks: list[Block] = [Text(f"Acceptance: {acceptance}.")] if acceptance else []
        blocks += _workloads(rows(group))
        blocks += [Facts({"file": result.name, **source(result.data)}) for result in group]
        blocks += [Text(f"Note: {note}") for result in group for note in result.data.get("notes") or ()]
        yield Section(f"Server benchmark on {hardware or 'hardware that was not recorded'}", blocks)


def _workloads(found: Sequence[Row]) -> Iterator[Block]:
    for workload in dict.fromkeys(row.workload for row in found):
        some = [row for row in found if row.workload == workload]
        yield Heading(f"Workload: {workload}")
        yield from _compared(_rates(some))
        yield from _figures(some)


def _rates(found: Iterable[Row]) -> Rates:
    measured: dict[str, dict[Case, list[float]]] = {}
    for row in found:
        measured.setdefault(row.contender, {}).setdefault(row.case, []).append(row.tokens_per_second)
    return {name: {case: fmean(rates) for case, rates in cases.items()} for name, cases in measured.items()}


def _best_static(rates: Rates) -> dict[Case, float]:
    best: dict[Case, float] = {}
    for name, cases in rates.items():
        if is_static(name):
            for case, rate in cases.items():
                best[case] = max(rate, best.get(case, 0.0))
    return best


def _compared(rates: Rates) -> Iterator[Block]:
    best = _best_static(rates)
    every = {name: [rate / best[at] for at, rate in cases.items() if at in best] for name, cases in rates.items()}
    shares = {name: found for name, found in every.items() if found}
    if shares:
        means = {name: geometric_mean(found) for name, found in shares.items()}
        ranked = sorted(shares, key=lambda name: -means[name])
        dots = {name: [(name, min(shares[name]), means[name])] for name in ranked}
        caption = "Share of each case's best static depth: dot at the geometric mean, line down to the worst case."
        yield Picture(dot_chart(dots, "share of each case's best static depth", row=24.0), caption)
        lines = [[name, str(len(shares[name])), f"{means[name]:.3f}", f"{min(shares[name]):.3f}"] for name in ranked]
        head = ["as a share of each case's best static depth", "cases", "geometric mean", "worst case"]
        yield Table(head, lines, frozenset(i for i, name in enumerate(ranked) if not is_static(name)))
    yield _table(rates, best)


def _table(rates: Rates, best: dict[Case, float]) -> Table:
    lines = []
    for case in sorted({at for cases in rates.values() for at in cases}, key=_order):
        cells = []
        for name, found in rates.items():
            rate = found.get(case)
            share = f" ({rate / best[case]:.2f})" if rate and case in best and not is_static(name) else ""
            cells.append("-" if rate is None else f"{rate:.0f}{share}")
        lines.append([case_in_words(case), *cells])
    return Table(["tokens per second (share of the best static)" if best else "tokens per second", *rates], lines)


def _order(case: Case) -> list[tuple[str, float, str]]:
    """Sort numbers as numbers, whichever keys a case has."""
    number = (int, float)
    return [(key, value if isinstance(value, number) else 0.0, str(value)) for key, value in case]


def _figures(found: Sequence[Row]) -> Iterator[Table]:
    """Yield the table of a workload's figures other than tokens/s, if it has any."""
    told = [(row, dict(_more(row.more))) for row in found]
    names = list(dict.fromkeys(name for _, figures in told for name in figures))
    if names:
        lines = [
            [f"{row.contender}: {case_in_words(row.case)}", *(figures.get(name, "-") for name in names)]
            for row, figures in told
        ]
        yield Table(["contender: case", *names], lines)


def _more(row: Any) -> Iterator[tuple[str, str]]:
    for key, (name, form) in FIGURES.items():
        if row.get(key) is not None:
            yield name, format(row[key], form)
    for key, name in LATENCIES.items():
        seen = [one[key] for one in row.get("passes") or () if one.get(key)]
        for percent in (50, 95, 99):
            if seen and row["workload"] != "steady":  # steady passes differ in length, so only the ratio above counts
                yield f"{name} p{percent} ms", f"{fmean(one[f'p{percent}_ms'] for one in seen):.1f}"
