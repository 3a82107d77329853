"""Writes what docs/monitoring.md says of all metrics; ``--check`` only says whether it is current."""

from __future__ import annotations

import sys

from generated import DOCS, update

from sglang_adaptive.policy.config.schema import MAX_STEPS
from sglang_adaptive.policy.config.throughput_options import DEFAULT_LADDER
from sglang_adaptive.sglang_plugin.reporting.metric_series import METRICS, PREFIX, most_series


def table() -> list[str]:
    """Return the lines of a Markdown table of every metric."""
    rows = [("Metric", "Type", "Label", "", "Meaning"), ("---",) * 5]
    for metric in METRICS:
        label = f"`{metric.label}`" if metric.label else ""
        policy = "T" if metric.throughput_only else ""
        rows.append((f"`{PREFIX}{metric.name}`", metric.kind, label, policy, metric.help))
    return [f"| {' | '.join(row)} |" for row in rows]


def bounds() -> list[str]:
    """Return the lines about how many series there can be."""
    usual, most = most_series(len(DEFAULT_LADDER), DEFAULT_LADDER[-1]), most_series(MAX_STEPS + 1, MAX_STEPS)
    return [
        f"A scheduler has {usual} series with the default candidate steps, and at most {most}. Their number does not",
        "grow with requests or time.",
    ]


if __name__ == "__main__":
    sys.exit(update(DOCS / "monitoring.md", {"metrics": table(), "series": bounds()}))
