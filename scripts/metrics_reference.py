"""Writes the table of metrics of docs/monitoring.md; ``--check`` only says whether it is current."""

from __future__ import annotations

import sys
from pathlib import Path

from sglang_adaptive.sglang_plugin.metric_series import METRICS, PREFIX

PAGE = Path(__file__).parents[1] / "docs" / "monitoring.md"
BEGIN, END = "<!-- metrics: begin -->\n", "<!-- metrics: end -->\n"


def table() -> str:
    """Return a Markdown table of every metric."""
    rows = [("Metric", "Type", "Label", "", "Meaning"), ("---",) * 5]
    for metric in METRICS:
        label = f"`{metric.label}`" if metric.label else ""
        policy = "T" if metric.throughput_only else ""
        rows.append((f"`{PREFIX}{metric.name}`", metric.kind, label, policy, metric.help))
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def current(page: str) -> str:
    """Return *page* with its table replaced."""
    before, rest = page.split(BEGIN)
    return before + BEGIN + table() + END + rest.split(END)[1]


def main() -> int:
    page = PAGE.read_text()
    if "--check" in sys.argv[1:]:
        return int(current(page) != page)
    PAGE.write_text(current(page))
    return 0


if __name__ == "__main__":
    sys.exit(main())
