"""Formats the speedup of the last hour; assets/worth.js does the same for the page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def worth(state: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the speedups over no speculation and over the launch steps; None without a cost model.

    *state* is the ``adaptive`` part of a server's state. Keys: ``words``, ``seconds`` from the first to the last
    counted round, and with ``times`` and ``deviation`` each ``no_speculation``, where zero steps have a runtime state,
    and ``launch_depth``.
    """
    speedup = state.get("speedup")
    if speedup is None:
        return None
    by_steps = {one["steps"]: {"times": one["times"], "deviation": one["deviation"]} for one in speedup["against"]}
    launch = state["launch_steps"]
    told = {"no_speculation": by_steps.get(0), "launch_depth": by_steps.get(launch) if launch else None}
    names = {"no_speculation": "no speculation", "launch_depth": f"a fixed {launch} step{'' if launch == 1 else 's'}"}
    parts = [f"{_times(one)} times {names[name]}" for name, one in told.items() if one is not None]
    words = f"{', '.join(parts)}, over the last {_span(speedup['seconds'])}" if parts else None
    return {"words": words, "seconds": speedup["seconds"], **told}


def _times(one: Mapping[str, float]) -> str:
    # Two standard deviations; the server reports an upper bound.
    doubt = 2.0 * one["deviation"]
    decimals = 2 if doubt < 0.095 else 1  # a second decimal only where it means something
    return f"{one['times']:.{decimals}f} (± {doubt:.{decimals}f})"


def _span(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} seconds"
    return "hour" if seconds >= 3540 else f"{seconds / 60:.0f} minutes"
