"""Writes the table of metrics of docs/monitoring.md; ``--check`` only says whether it is current."""

from __future__ import annotations

import sys

from generated import DOCS, update

from sglang_adaptive.sglang_plugin.reporting.metric_series import METRICS, PREFIX


def table() -> list[str]:
    """Return the lines of a Markdown table of every metric."""
    rows = [("Metric", "Type", "Label", "", "Meaning"), ("---",) * 5]
    for metric in METRICS:
        label = f"`{metric.label}`" if metric.label else ""
        policy = "T" if metric.throughput_only else ""
        rows.append((f"`{PREFIX}{metric.name}`", metric.kind, label, policy, metric.help))
    return [f"| {' | '.join(row)} |" for row in rows]


if __name__ == "__main__":
    sys.exit(update(DOCS / "monitoring.md", {"metrics": table()}))
