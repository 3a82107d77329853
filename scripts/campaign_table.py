"""Writes the table of docs/compatibility.md from benchmarks/results/campaign/report.json; ``--check`` only compares."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from generated import DOCS, update

REPORT = Path(__file__).parents[1] / "benchmarks" / "results" / "campaign" / "report.json"


def table(report: dict[str, Any]) -> Iterator[str]:
    """Yield how much each stage tried, and what was lost."""
    yield (
        f"`{report['command']}`, {report['hardware']}, commit {report['commit'][:8]}: {report['lost']} lost "
        "([report](../benchmarks/results/campaign/report.md))."
    )
    yield ""
    yield "| Stage | minutes | tried | known of SGLang | lost |\n|---|---|---|---|---|"
    for name, stage in report["stages"].items():
        counts = [sum(stage[kind].values()) for kind in ("tried", "known", "lost")]
        yield f"| {name} | {stage['minutes']} | {' | '.join(f'{count:,}' for count in counts)} |"


if __name__ == "__main__":
    raise SystemExit(update(DOCS / "compatibility.md", {"campaign": table(json.loads(REPORT.read_text()))}))
