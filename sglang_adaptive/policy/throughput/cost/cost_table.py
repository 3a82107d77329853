"""The cost model's whole table, for people to look at."""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

from sglang_adaptive.policy.throughput.cost.model import CostModel

BEYOND = 1
"""Anchors shown past the largest batch size that matters: what comes next, and no screen of guesses."""


def cost_table(cost: CostModel, batch_size: int) -> dict[str, Any]:
    """Return round times and their sources by anchor batch size and depth, as JSON builtins.

    ``seconds[i][j]`` is the time of a round at ``batch_sizes[i]`` and ``steps[j]``; ``source[i][j]`` is "measured",
    "profile", "interpolated" or "prior". Anchors go a little beyond *batch_size* and beyond every cell that was
    measured or came from a profile.
    """
    anchors = cost.base.anchors
    known = max((batch for batch, _ in (*cost.base.profiled, *cost.known)), default=1)
    shown = anchors[: bisect_left(anchors, max(known, batch_size)) + 1 + BEYOND]
    return {
        "batch_sizes": list(shown),
        "steps": list(cost.ladder),
        "seconds": [cost.row(anchor)[0] for anchor in shown],
        "source": [[cost.source(anchor, rung) for rung in range(len(cost.ladder))] for anchor in shown],
    }
