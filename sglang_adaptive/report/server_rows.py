"""The rows of server benchmarks, from the files of ``python -m benchmarks.server`` now (schema 2) and before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sglang_adaptive.report.results import Result

Case = tuple[tuple[str, Any], ...]
"""What a row was measured under, as pairs: batch size, p and the like."""

CELLS, ACCEPTANCE = "cells", "acceptance"


@dataclass(frozen=True, slots=True)
class Row:
    """One contender in one case of one workload."""

    workload: str
    contender: str
    case: Case
    tokens_per_second: float
    more: Mapping[str, Any]
    """The row of the file, for keys that only some workloads have."""


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
    """Return a case as a table names it."""
    short = {"batch_size": "batch", "requests_per_second": "requests/s", "phase_seconds": "phase s"}
    shown = [(short.get(key, key), value) for key, value in case if key not in ("decay", "capacity_of", "phases")]
    return ", ".join(f"{key} {_value(value)}" for key, value in shown if value is not None)


def _of(result: Result) -> Iterator[Row]:
    if "rows" not in result.data:
        yield from _before_schema_2(result.data)
        return
    found = [
        Row(row["workload"], row["contender"], _case(row["case"]), row["tokens_per_second"], row)
        for row in result.data["rows"]
    ]
    known = list(dict.fromkeys(row.case for row in found))
    for row in found:
        for case in _cases(row.case, known):
            yield Row(row.workload, row.contender, case, row.tokens_per_second, row.more)


def _before_schema_2(data: Mapping[str, Any]) -> Iterator[Row]:
    for workload, key in ((CELLS, "cells"), (ACCEPTANCE, "switching")):
        for cell in data.get(key) or ():
            name = f"static-{cell['steps']}" if cell["steps"] >= 0 else data["label"] or "policy"
            case = _case({"batch_size": cell["batch_size"], "p": cell.get("p")})
            yield Row(workload, name, case, cell["tokens_per_second"], cell)


def _case(case: Mapping[str, Any]) -> Case:
    return tuple((key, tuple(value) if isinstance(value, list) else value) for key, value in case.items())


def _cases(case: Case, known: Sequence[Case]) -> Sequence[Case]:
    """Return the cases that a row speaks for: without drafts p makes no difference, so null is every p."""
    if "p" not in dict(case) or dict(case)["p"] is not None:
        return [case]
    same = [one for one in known if dict(one).get("p") is not None and {**dict(one), "p": None} == dict(case)]
    return same or [case]


def _value(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
