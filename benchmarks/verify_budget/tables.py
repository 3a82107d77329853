"""The results as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.verify_budget.beliefs import BELIEFS

LEARNT = "learnt by probability and position"


def markdown(reports: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines of every table: the fits, and of each trace the budgets and the early stops."""
    yield from _head("profile", "worst error of the fit, ms", "of the measured time")
    for name, one in reports[0]["fit"].items():
        yield _row(name, f"{one['worst_error_ms']:.2f}", f"{one['worst_share']:.1%}")
    for report in reports:
        yield from _budgets(report["trace"], [cell for cell in report["cells"] if cell["budget"]])
        yield from _early(report["trace"], [cell for cell in report["cells"] if cell["early"]])


def _budgets(trace: str, cells: Sequence[dict[str, Any]]) -> Iterator[str]:
    batches = sorted({cell["batch"] for cell in cells})
    yield f"\n{trace}, a verify budget: gain over the best uniform depth\n"
    yield from _head("profile", "", *(f"{batch}{'' if _measured(cells, batch) else '*'}" for batch in batches))
    for profile in dict.fromkeys(cell["profile"] for cell in cells):
        own = {cell["batch"]: cell for cell in cells if cell["profile"] == profile}
        for belief in BELIEFS:
            yield _row(profile, belief, *(f"{own[b]['budget'][belief]['gain']:.3f}" for b in batches))
        if "free" in own[batches[0]]:
            yield _row(profile, "any number, learnt", *(f"{own[b]['free']['gain']:.3f}" for b in batches))
        yield _row(profile, "drafts, verifies / uniform", *(_choice(own[batch]) for batch in batches))


def _choice(cell: dict[str, Any]) -> str:
    best = cell["budget"][LEARNT]
    return f"{best['steps']}, {best['verified']:.0f} / {cell['uniform']['steps']}"


def _early(trace: str, cells: Sequence[dict[str, Any]]) -> Iterator[str]:
    if not cells:
        return
    yield f"\n{trace}, stopping early: gain over the best uniform depth\n"
    yield from _head("profile", "batch", *cells[0]["early"])
    for cell in cells:
        yield _row(cell["profile"], cell["batch"], *(f"{one['gain']:.3f}" for one in cell["early"].values()))


def _measured(cells: Sequence[dict[str, Any]], batch: int) -> bool:
    return all(cell["measured"] for cell in cells if cell["batch"] == batch)


def _head(*titles: object) -> Iterator[str]:
    yield _row(*titles)
    yield "|---" * len(titles) + "|"


def _row(*cells: object) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"
