"""The report of a campaign, as JSON and Markdown: what was tried, how often, and what was lost."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

from sglang_adaptive.provenance import cpu_cores, cpu_model, git_commit, versions
from tests.campaign import gpu
from tests.campaign.record import Record, Unit

MOST_TOLD = 20
"""Losses of a stage whose details are in the report; the units' own files have more."""


def make(record: Record, command: str) -> dict[str, Any]:
    """Return the totals over all units of *record*."""
    stages: dict[str, list[Unit]] = {}
    for unit in record.units.values():
        stages.setdefault(unit.stage, []).append(unit)
    hardware = gpu.name() if gpu.used else f"{cpu_cores()} cores of {cpu_model()}, the CPU engine"
    return {
        "command": command,
        "seed": record.seed,
        "hardware": f"{hardware} with the tiny pair",
        "commit": git_commit(),
        "versions": versions("sglang", "sglang-adaptive", "torch"),
        "stages": {name: _stage(units) for name, units in stages.items()},
        "lost": sum(unit.lost.total() for unit in record.units.values()),
    }


def _stage(units: list[Unit]) -> dict[str, Any]:
    counts = {name: sum((getattr(unit, name) for unit in units), Counter()) for name in ("tried", "known", "lost")}
    told = [{"unit": unit.name, **_without_places(loss)} for unit in units for loss in unit.losses]
    return {
        "units": len(units),
        "minutes": round(sum(unit.seconds for unit in units) / 60, 1),
        **{name: dict(sorted(found.items())) for name, found in counts.items()},
        "losses": told[:MOST_TOLD],
        "figures": [{"unit": unit.name, **unit.figures} for unit in units if unit.figures],
    }


def _without_places(loss: dict[str, str]) -> dict[str, str]:
    """Return *loss* without the folders of absolute paths, which are specific to a machine."""
    return {name: re.sub(r"(?:/[\w.+-]+){2,}/", ".../", text) for name, text in loss.items()}


def page(report: dict[str, Any]) -> str:
    lines = [
        f"# Campaign, seed {report['seed']}",
        "",
        f"`{report['command']}` on {report['hardware']}. Lost: {report['lost']}.",
        "",
        "| Stage | units | minutes | tried | known of SGLang | lost |",
        "|---|---|---|---|---|---|",
    ]
    for name, stage in report["stages"].items():
        counts = [sum(stage[kind].values()) for kind in ("tried", "known", "lost")]
        lines.append(f"| {name} | {stage['units']} | {stage['minutes']} | {' | '.join(f'{n:,}' for n in counts)} |")
    for name, stage in report["stages"].items():
        lines += ["", f"## {name}", "", "| Tried | times | lost |", "|---|---|---|"]
        lines += [f"| {what} | {n:,} | {stage['lost'].get(what, 0)} |" for what, n in stage["tried"].items()]
        lines += ["", *(f"- {loss['unit']}: {loss['what']}: {loss['detail'][:300]!r}" for loss in stage["losses"])]
        lines += [f"- known of SGLang: {what}: {n:,}" for what, n in stage["known"].items()]
        last = stage["figures"][-1:]
        lines += ["", *(f"- {what}, in the last unit: {value}" for what, value in (last[0] if last else {}).items())]
    return "\n".join(lines) + "\n"


def write(report: dict[str, Any], folder: Path) -> Path:
    """Write ``report.json`` and ``report.md`` to *folder*; return the latter's path."""
    (folder / "report.json").write_text(json.dumps(report, indent=1) + "\n")
    path = folder / "report.md"
    path.write_text(page(report))
    return path
