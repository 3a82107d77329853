"""What the throughput policy tells operators, and the profile that it leaves to the next start."""

from __future__ import annotations

import math
from bisect import bisect_left
from typing import TYPE_CHECKING, Any

from sglang_adaptive.policy.profile.profile import CostProfile, ProfileCell, ProfileKey, ordered
from sglang_adaptive.policy.throughput.cost.model import MEASURED, CostModel

if TYPE_CHECKING:
    from sglang_adaptive.policy.throughput.cost.round_times import RoundTimeRow
    from sglang_adaptive.policy.throughput.policy import ThroughputPolicy


def report(policy: ThroughputPolicy) -> dict[str, Any]:
    """Return the policy's state as JSON builtins; rates are for the batch size of the latest round."""
    batch_size = max(1, policy._batch_size)
    row = policy._row(batch_size)
    rates = _rates(policy, row, batch_size)
    account = policy._prober
    return {
        "rounds": policy._round,
        "batch_size": batch_size,
        "steps": policy._running,
        "budget": policy.budget,
        "why": _why(policy, row, rates),
        "acceptance": _acceptance(policy),
        "acceptance_by_level": policy._acceptance.by_level(),
        "budget_shares": policy._budgets.yields.as_list(),
        "rates": rates,
        "cost_cells": [{**cell, "source": MEASURED} for cell in _cells(policy)],
        "cost_table": _cost_table(policy._cost, row.padded),
        "cost_drift": math.exp(policy._readings.drift) - 1.0,
        "probes": {
            "started": account.started,
            "charged_seconds": account.lost_seconds,
            "share": account.lost_seconds / account.served_seconds if account.served_seconds else 0.0,
            "budget": account.budget,
        },
        "lost_to_zero_steps_rounds": policy._choice.losses.lost,
    }


def learnt_profile(policy: ThroughputPolicy, key: ProfileKey, measured: str) -> CostProfile:
    """Return the cells that this server measured, as far as a single outlier cannot have made them."""
    cells = (ProfileCell(**cell) for cell in _cells(policy) if cell["rounds"] >= 3)
    return CostProfile(key, ordered(cells), measured)


def _acceptance(policy: ThroughputPolicy) -> list[dict[str, Any]]:
    estimator = policy._acceptance
    rows = [(at, h, estimator.deviation(at), estimator.trials(at)) for at, h in enumerate(estimator.conditional, 1)]
    return [dict(zip(("position", "probability", "deviation", "trials"), row, strict=True)) for row in rows]


def _rates(policy: ThroughputPolicy, row: RoundTimeRow, batch_size: int) -> list[dict[str, Any]]:
    tokens, live = policy._acceptance.tokens, policy._running
    slower = policy._acceptance.slower(live)
    rates = []
    for rung, (steps, seconds) in enumerate(row.seconds.items()):
        budget = row.budgets.get(steps)
        took = row.took[steps, budget or steps]
        rates.append(
            {
                "steps": steps,
                "budget": budget,
                "tokens_per_second": batch_size * tokens[steps] / seconds,
                "tokens_per_round": batch_size * tokens[steps] * took / seconds,
                "times_running": row.seconds.get(live, seconds) / (seconds * slower[rung]),
                "seconds": took,
                "deviation": row.deviation[steps],
                "source": policy._cost.source(row.padded, rung, budget),
                "allowed": steps in row.allowed,
            }
        )
    return rates


def _cost_table(cost: CostModel, batch_size: int) -> dict[str, Any]:
    """Return times and their sources by anchor and depth, up to one anchor past *batch_size* and all that is known."""
    anchors = cost.base.anchors
    known = max((batch for batch, _ in (*cost.base.profiled, *cost.known)), default=1)
    shown = anchors[: bisect_left(anchors, max(known, batch_size)) + 2]
    return {
        "batch_sizes": list(shown),
        "steps": list(cost.ladder),
        "seconds": [cost.row(anchor)[0] for anchor in shown],
        "source": [[cost.source(anchor, rung) for rung in range(len(cost.ladder))] for anchor in shown],
    }


def _cells(policy: ThroughputPolicy) -> list[dict[str, Any]]:
    """Return the measured cells, ascending by batch size, steps and budget."""
    base, drift, found = policy._cost.base, policy._readings.drift, []
    for (anchor, steps, budget), cell in sorted(policy._readings.cells.items()):
        seconds = base.pair_seconds(anchor, steps, budget)[0] * math.exp(cell.ratio + drift)
        found.append((anchor, steps, seconds, cell.readings, budget if budget < steps else None))
    return [dict(zip(("batch_size", "steps", "seconds", "rounds", "budget"), row, strict=True)) for row in found]


def _why(policy: ThroughputPolicy, row: RoundTimeRow, rates: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the reason for the running depth: a code, its figures, and words."""
    steps, live = policy._running, policy._choice.live
    gains = {rate["steps"]: rate["times_running"] - 1.0 for rate in rates if rate["allowed"]}
    best = max(gains, key=lambda s: (gains[s], -s))
    rival = max((s for s in gains if s != steps), key=lambda s: (gains[s], -s), default=None)
    gain = gains[rival] if rival is not None and steps in gains else 0.0
    running = _steps(steps, policy.budget)
    if policy._round == 0:
        code, words = "start", f"{running}: no round has been verified yet"
    elif steps != live:
        code, words = "probe", f"{running} for a few rounds, to learn what they bring; otherwise {live}"
    elif policy._votes and steps != best:
        code, words = "vote", f"{running}: what all ranks agreed on"
    elif steps == best:
        code, words = "best", f"{running} {_verb('promise', steps)} to be done with this text soonest"
    elif steps == 0:
        code, words = "guard", f"no speculation: {_steps(best)} {_verb('do', best)} not promise enough more to risk it"
    else:
        does = _verb("do", best)
        code, words = "margin", f"{running} {_verb('stay', steps)}: {best} {does} not promise enough more to switch"
    if rival is not None:
        words += f" ({_steps(rival)}: {100.0 * gain:+.1f}%)"
    return {"code": code, "rival_steps": rival, "rival_gain": gain, "words": words}


def _steps(count: int, budget: int | None = None) -> str:
    steps = "1 step" if count == 1 else f"{count} steps"
    return steps if budget is None else f"{steps} of which {budget} a request are verified"


def _verb(plural: str, count: int) -> str:
    """Return the verb as it follows so many steps."""
    return {"do": "does"}.get(plural, f"{plural}s") if count == 1 else plural
