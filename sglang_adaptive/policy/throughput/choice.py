"""Which steps to run, and why: those with the highest expected rate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from sglang_adaptive.policy.choice import Choice, Source
from sglang_adaptive.policy.throughput.acceptance import AcceptanceEstimator
from sglang_adaptive.policy.throughput.cost import CostModel
from sglang_adaptive.policy.throughput.rows import RoundTimeRow


def fastest(live: int, row: RoundTimeRow, slower: Sequence[float]) -> int:
    """Return the steps that serve the batch's text in the least time; of equally fast ones *live*, if it is one.

    *slower* is from ``AcceptanceEstimator.slower`` of *live*.

    A bound on what speculation may lose against zero steps changed nothing (benchmarks/results/simulation/README.md).
    """
    best, least = live, math.inf
    for rung, steps, seconds in row.rungs:
        time = seconds * slower[rung]
        if time < least or (time == least and steps == live):
            best, least = steps, time
    return best


def rates(
    batch_size: int, running: int, row: RoundTimeRow, acceptance: AcceptanceEstimator, cost: CostModel
) -> list[dict[str, Any]]:
    """Return as builtins the expected rate of each number of steps at *batch_size*, also over that of *running*."""
    tokens, slower = acceptance.tokens, acceptance.slower(running)
    return [
        {
            "steps": steps, "tokens_per_second": batch_size * tokens[steps] / seconds,
            "tokens_per_round": batch_size * tokens[steps],
            "times_running": row.seconds.get(running, seconds) / (seconds * slower[rung]),
            "seconds": seconds, "deviation": row.deviation[steps], "source": cost.source(row.padded, steps),
            "allowed": steps in row.allowed,
        }
        for rung, (steps, seconds) in enumerate(row.seconds.items())
    ]  # fmt: skip


def why(ran: Choice, live: int, rounds: int, voted: bool, promised: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the reason for what *ran*, from the result of ``rates``: a code, its figures, and words.

    *live* are the steps without a probe, *voted* says whether several ranks agree on the steps.
    """
    steps = ran.steps
    if ran.source is Source.LOOKUP:
        words = f"{steps} drafts looked up in each request's own text, which copies itself, promise the highest speed"
        return {"code": "lookup", "rival_steps": None, "rival_gain": 0.0, "words": words}
    gains = {rate["steps"]: rate["times_running"] - 1.0 for rate in promised if rate["allowed"]}
    best = max(gains, key=lambda s: (gains[s], -s))
    rival = max((s for s in gains if s != steps), key=lambda s: (gains[s], -s), default=None)
    gain = gains[rival] if rival is not None and steps in gains else 0.0
    running = _steps(steps)
    if rounds == 0:
        code, words = "start", f"{running}: no round has been verified yet"
    elif ran.probe:
        code, words = "probe", f"{running} for a few rounds, as a probe; otherwise {live}"
    elif voted and steps != best:
        code, words = "vote", f"{running}: what all ranks agreed on"
    elif steps == best:
        code, words = "best", f"{running} {'promises' if steps == 1 else 'promise'} the highest speed for this text"
    else:
        code, words = "stale", f"{running}: chosen before the latest results"
    if rival is not None:
        words += f" ({_steps(rival)}: {100.0 * gain:+.1f}%)"
    return {"code": code, "rival_steps": rival, "rival_gain": gain, "words": words}


def _steps(count: int) -> str:
    return "1 step" if count == 1 else f"{count} steps"
