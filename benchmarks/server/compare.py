"""Results side by side: every contender in every case of a workload, as a share of a reference."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.server.numbers import best_of, shares, summed_up
from benchmarks.server.results import read
from benchmarks.server.workloads.plan import Row

Case = tuple[tuple[str, Any], ...]
Rates = dict[str, dict[Case, float]]
"""Tokens/s by contender and case."""


def table(paths: Sequence[Path], workload: str | None = None) -> str:
    """Return a table for each workload in *paths*. Raises BadResult for an unusable file."""
    documents = {_label(path, paths): read(path) for path in paths}
    present = [row["workload"] for document in documents.values() for row in document["rows"]]
    wanted = [name for name in dict.fromkeys(present) if workload in (None, name)]
    if not wanted:
        return "no rows" + (f" of {workload}" if workload else "")
    acceptance = sorted({document["acceptance"] for document in documents.values()})
    return "\n\n".join([*(_workload(name, documents) for name in wanted), *acceptance])


def rates(named_rows: Iterable[tuple[str, Row]]) -> Rates:
    """Return tokens/s by contender and case, the mean of rows that are of the same ones.

    A row whose p is None holds for every p of its batch size.
    """
    rows = list(named_rows)
    known = list(dict.fromkeys(case_of(row) for _, row in rows))
    found: dict[str, dict[Case, list[float]]] = {}
    for name, row in rows:
        for case in _cases(case_of(row), known):
            found.setdefault(name, {}).setdefault(case, []).append(row["tokens_per_second"])
    return {name: {case: fmean(each) for case, each in cases.items()} for name, cases in found.items()}


def case_of(row: Row) -> Case:
    """Return what identifies a row's case, hashable."""
    return tuple((key, tuple(value) if isinstance(value, list) else value) for key, value in row["case"].items())


def is_static(name: str) -> bool:
    """Return whether a contender runs one depth, drafts or none."""
    return name.startswith("static-")


def best_static(found: Mapping[str, Mapping[Case, float]]) -> dict[Case, float]:
    """Return each case's best static depth in tokens/s."""
    return best_of([cases for name, cases in found.items() if is_static(name)])


def _cases(case: Case, known: Sequence[Case]) -> list[Case]:
    plain = dict(case)
    if "p" not in plain or plain["p"] is not None:
        return [case]
    same = [one for one in known if {**dict(one), "p": None} == plain and dict(one)["p"] is not None]
    return same or [case]


def _workload(workload: str, documents: Mapping[str, dict[str, Any]]) -> str:
    rows = [(label, row) for label, document in documents.items() for row in document["rows"]]
    rows = [(label, row) for label, row in rows if row["workload"] == workload]
    found = rates(_distinct(rows))
    reference, what = _reference(found)
    cases = list(dict.fromkeys(case for one in found.values() for case in one))
    wide = max(12, *(len(name) + 2 for name in found))
    head = f"{workload}: tokens/s as a share of {what}"
    lines = [head, f"{'':<34}{'tokens/s':>10}" + "".join(f"{name:>{wide}}" for name in found)]
    for case in cases:
        base = reference.get(case)
        cells = (f"{found[name][case] / base:.3f}" if base and case in found[name] else "-" for name in found)
        lines.append(f"{_words(case):<34.34}{base or 0:>10.0f}" + "".join(f"{cell:>{wide}}" for cell in cells))
    drafted = {case: rate for case, rate in reference.items() if dict(case).get("p") != 0}  # at p 0 no draft can pay
    sums = [shares(of, drafted) for of in found.values()]
    for index, name in enumerate((f"geometric mean{' of p > 0' if len(drafted) < len(reference) else ''}", "worst")):
        cells = (f"{summed_up(one)[index]:.3f}" if one else "-" for one in sums)
        lines.append(f"{name:<44}" + "".join(f"{cell:>{wide}}" for cell in cells))
    return "\n".join(lines)


def _reference(found: Rates) -> tuple[dict[Case, float], str]:
    best = best_static(found)
    if best:
        return best, "the case's best static depth"
    first = next(iter(found))
    return dict(found[first]), first


def _distinct(rows: Sequence[tuple[str, Row]]) -> list[tuple[str, Row]]:
    """Return contender and row; contenders that several files have carry the file's name."""
    owners: dict[str, set[str]] = {}
    for label, row in rows:
        owners.setdefault(row["contender"], set()).add(label)
    return [
        (f"{row['contender']} {label}" if len(owners[row["contender"]]) > 1 else row["contender"], row)
        for label, row in rows
    ]


def _label(path: Path, paths: Sequence[Path]) -> str:
    """Return the file's name, with its folder where another file has the same name."""
    alike = sum(path.name == other.name for other in paths) > 1
    return f"{path.parent.name}/{path.stem}" if alike else path.stem


def _words(case: Case) -> str:
    short = {"batch_size": "batch", "requests_per_second": "req/s", "phase_seconds": "s"}
    left_out = ("decay", "capacity_of", "phases")
    parts = [f"{short.get(key, key)} {_value(value)}" for key, value in case if key not in left_out]
    return ", ".join(parts)


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
