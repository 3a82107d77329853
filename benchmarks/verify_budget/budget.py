"""Draft `steps` for every request, verify the drafts of the batch that are most likely right."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from benchmarks.verify_budget.beliefs import Belief
from benchmarks.verify_budget.closed_loop import Slots, Tally
from benchmarks.verify_budget.prices import Prices
from sglang_adaptive.traces import Trace

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]


def fixed(trace: Trace, belief: Belief, batch: int, steps: int, budget: int, tokens: int, seed: int = 0) -> Tally:
    """Run until *tokens* came out, verifying ``batch * budget`` drafts a round; with budget = steps all of them.

    What is accepted does not depend on round times, so none are in the answer.
    """
    slots, tally = Slots(trace, batch, seed), Tally()
    while tally.tokens < tokens:
        rows = slots.rows
        kept = np.full(batch, steps)
        if budget < steps:
            kept = likeliest(np.cumprod(belief.chances(rows, steps), axis=1), batch * budget)
        _settle(trace, belief, slots, tally, rows, kept)
    return tally


def free(
    trace: Trace, belief: Belief, batch: int, steps: int, prices: Prices, rate: float, tokens: int, seed: int = 0
) -> Tally:
    """Run with as many drafts verified a round as are worth their seconds at *rate* tokens a second."""
    slots, tally = Slots(trace, batch, seed), Tally()
    cost = prices.ragged(batch, steps, np.arange(batch, batch * (steps + 1) + 1))
    while tally.tokens < tokens:
        rows = slots.rows
        products = np.cumprod(belief.chances(rows, steps), axis=1)
        gained = np.concatenate([[0.0], np.cumsum(np.sort(products, axis=None)[::-1])])
        count = int(np.argmax(gained - rate * cost))
        _settle(trace, belief, slots, tally, rows, likeliest(products, count))
        tally.seconds += float(cost[count])
    return tally


def likeliest(products: FloatArray, count: int) -> IntArray:
    """Return how many drafts of each chain are among the *count* largest of *products* [requests, steps].

    Products fall along a chain, so they are its first ones.
    """
    requests, steps = products.shape
    if count == 0:
        return np.zeros(requests, np.int64)
    best = np.argpartition(-products, count - 1, axis=None)[:count]
    return np.bincount(best // steps, minlength=requests)


def _settle(trace: Trace, belief: Belief, slots: Slots, tally: Tally, rows: IntArray, kept: IntArray) -> None:
    right = np.minimum(trace.accepted[rows].astype(np.int64), kept)
    belief.hear(rows, kept, right)
    tally.tokens += slots.advance(right + 1)
    tally.rounds += 1
    tally.verified += int(kept.sum())
