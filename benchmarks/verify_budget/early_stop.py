"""Draft one step after the other, and stop when the next is not worth its seconds."""

from __future__ import annotations

import numpy as np

from benchmarks.verify_budget.beliefs import Belief
from benchmarks.verify_budget.closed_loop import Slots, Tally
from benchmarks.verify_budget.prices import Prices
from sglang_adaptive.traces import CHAIN, Trace

HOPE = 20.0
"""Drafts of each position that count as right before any was verified."""


def stopping(
    trace: Trace, belief: Belief, batch: int, prices: Prices, rate: float, ask: float, tokens: int, seed: int = 0
) -> Tally:
    """Run until *tokens* came out; all requests of a round draft and verify alike.

    After the first draft the host knows how sure the draft was of each so far. The next one is foretold to be right as
    often as those of its position were, and made while it brings more than its seconds at *rate* tokens a second.
    *ask* is the seconds that a round's looks cost.
    """
    slots, tally = Slots(trace, batch, seed), Tally()
    cost = np.array([prices.seconds(batch, s, batch * (s + 1)) for s in range(CHAIN + 1)])
    cost[0] = prices.without_drafts(batch)
    # Hopeful at first: what is never drafted is never learnt.
    right_at, tried_at = np.full(CHAIN, HOPE), np.full(CHAIN, HOPE)
    while tally.tokens < tokens:
        rows = slots.rows
        reached = np.cumprod(belief.chances(rows, CHAIN), axis=1)
        steps = 1
        while steps < CHAIN:
            brought = reached[:, steps - 1].sum() * right_at[steps] / tried_at[steps]
            if brought < rate * (cost[steps + 1] - cost[steps]):
                break
            steps += 1
        kept = np.full(batch, steps)
        right = np.minimum(trace.accepted[rows].astype(np.int64), steps)
        belief.hear(rows, kept, right)
        for position in range(steps):
            tried_at[position] += np.count_nonzero(right >= position)
            right_at[position] += np.count_nonzero(right > position)
        tally.tokens += slots.advance(right + 1)
        tally.rounds += 1
        tally.verified += int(kept.sum())
        tally.seconds += float(cost[steps]) + ask
    return tally
