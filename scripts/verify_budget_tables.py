"""Writes the tables of docs/verify-budget.md from benchmarks/results/verify_budget/; ``--check`` only compares."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from generated import DOCS, update

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # benchmarks is no part of the package

from benchmarks.served import table  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "verify_budget"
SERVED = RESULTS.with_name("served") / "replay-32b.json"
LEARNT, BEFOREHAND = "learnt by probability and position", "known beforehand"
DEAR = ", dear drafts"


def budgets() -> Iterator[str]:
    """Yield the gain of the best budget, learnt, by profile and batch size."""
    reports = _reports()
    batches = sorted({cell["batch"] for cell in reports[0]["cells"] if cell["budget"]})
    yield f"| trace | round times | {' | '.join(map(str, batches))} |"
    yield "|---|---|" + "---|" * len(batches)
    for report in reports:
        for profile, own in _by_profile(report, "budget").items():
            gains = [own[batch]["budget"][LEARNT]["gain"] for batch in batches]
            yield f"| {report['trace']} | {profile} | {' | '.join(f'{gain:.3f}' for gain in gains)} |"


def early() -> Iterator[str]:
    """Yield the gain of stopping early, learnt, by profile."""
    yield "| trace | round times | batch 1 | 0.1 ms a round for looking | batch 2 | 0.1 ms a round for looking |"
    yield "|---|---|---|---|---|---|"
    for report in _reports():
        for profile, own in _by_profile(report, "early").items():
            found = [own[batch]["early"][f"{LEARNT}, {ask} ms a round"]["gain"] for batch in (1, 2) for ask in (0, 0.1)]
            yield f"| {report['trace']} | {profile} | {' | '.join(f'{gain:.3f}' for gain in found)} |"


def beliefs() -> Iterator[str]:
    """Yield what knowing more brings at batch 64: the mean gain over the profiles, by belief."""
    reports = _reports()
    names = list(next(cell for cell in reports[0]["cells"] if cell["budget"])["budget"])
    yield f"| trace, batch 64 | {' | '.join(names)} | any number a round, learnt |"
    yield "|---|" + "---|" * (len(names) + 1)
    for report in reports:
        cells = [cell for cell in report["cells"] if cell["batch"] == 64 and "free" in cell]
        means = [sum(cell["budget"][name]["gain"] for cell in cells) / len(cells) for name in names]
        means.append(sum(cell["free"]["gain"] for cell in cells) / len(cells))
        yield f"| {report['trace']} | {' | '.join(f'{mean:.3f}' for mean in means)} |"


def fits() -> Iterator[str]:
    """Yield the worst error of each fit."""
    yield "| round times | worst error of the fit | of the measured time |\n|---|---|---|"
    for name, one in _reports()[0]["fit"].items():
        yield f"| {name} | {one['worst_error_ms']:.2f} ms | {one['worst_share']:.1%} |"


def policy() -> Iterator[str]:
    """Yield what the policy came to from a profile, over the best uniform depth: rectangles alone, then budgets."""
    cells = _policy_cells()
    batches = sorted({cell["batch"] for cell in cells})
    yield f"| trace | round times | {' | '.join(map(str, batches))} |"
    yield "|---|---|" + "---|" * len(batches)
    rows: dict[tuple[str, str], list[str]] = {}
    for cell in cells:
        one = cell["from a profile"]
        shown = f"{one['rectangles']:.3f}, {one['budgets']:.3f}" + ("" if cell["measured"] else " *")
        rows.setdefault((cell["trace"], cell["profile"]), []).append(shown)
    for (trace, profile), found in rows.items():
        yield f"| {trace} | {profile} | {' | '.join(found)} |"


def ratios() -> Iterator[str]:
    """Yield budgets over rectangles alone, by trace and by what the policy starts with."""
    yield "| trace | the policy starts | mean | worst cell | worst run | cells from 0.99 on |"
    yield "|---|---|" + "---|" * 4
    cells = _policy_cells()
    for trace in dict.fromkeys(cell["trace"] for cell in cells):
        for start in ("from a profile", "from nothing"):
            own = [cell[start] for cell in cells if cell["trace"] == trace]
            each = [one["ratio"] for one in own]
            good = sum(ratio >= 0.99 for ratio in each)
            worst = f"{min(each):.3f} | {min(one['worst'] for one in own):.3f}"
            yield f"| {trace} | {start} | {sum(each) / len(each):.3f} | {worst} | {good} of {len(each)} |"


def _policy_cells() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((RESULTS / "policy" / "policy.json").read_text(encoding="utf-8"))["cells"]
    return found


def _by_profile(report: dict[str, Any], kind: str) -> dict[str, dict[int, dict[str, Any]]]:
    found: dict[str, dict[int, dict[str, Any]]] = {}
    for cell in sorted(report["cells"], key=lambda cell: cell["profile"].endswith(DEAR)):
        if cell[kind]:
            found.setdefault(cell["profile"], {})[cell["batch"]] = cell
    return found


def _reports() -> list[dict[str, Any]]:
    return [json.loads(file.read_text(encoding="utf-8")) for file in sorted(RESULTS.glob("*.json"))]


if __name__ == "__main__":
    tables = {"budgets": budgets(), "early": early(), "beliefs": beliefs(), "fits": fits()}
    tables |= {"policy": policy(), "policy-ratios": ratios()}
    tables["served"] = table.budgets(json.loads(SERVED.read_text(encoding="utf-8")))
    sys.exit(update(DOCS / "verify-budget.md", {f"verify-budget-{name}": lines for name, lines in tables.items()}))
