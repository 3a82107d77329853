"""What an oracle that gives each request its own depth would reach.

No server runs such rounds yet, so their time is modeled. A round that drafts to depth ``m`` and verifies ``n`` tokens
in total costs the table's time of depth ``m`` for the whole batch, less the verify time of the tokens left out:

    T(batch, m, n) = table(batch, m) - (V(batch * (m + 1)) - V(n))

``V`` is the part of the table that depends on verified tokens, from a least-squares fit of

    T = a + b*[steps > 0] + c*steps + d*steps*batch + e*batch + V(batch * (steps + 1)),   V piecewise linear.

Every request is charged the draft of the deepest one, so the figure is a lower bound of the possible gain.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sglang_adaptive.lab.simulate.cost import FloatArray, RoundCost
from sglang_adaptive.lab.simulate.trace import IntArray, Trace

KNOTS = (0, 32, 64, 128, 192, 256, 384)
"""Verified tokens at which the slope of ``V`` may change."""
EVERY = 4
"""One round in this many is evaluated; requests live for about a hundred."""


@dataclass(frozen=True, eq=False)
class VerifyCost:
    """``V`` at 0..n verified tokens, in seconds, and the largest relative error of the fit over the table."""

    seconds: FloatArray
    worst_fit_error: float


def fit_verify_cost(cost: RoundCost) -> VerifyCost:
    """Fit the module's model to *cost*, with every cell weighted by its own size."""
    batch, steps = (grid.ravel().astype(float) for grid in np.meshgrid(cost.batches, cost.steps, indexing="ij"))
    measured = cost.seconds.ravel()
    fixed = [np.ones_like(batch), steps > 0, steps, steps * batch, batch]
    design = np.concatenate([np.stack(fixed, axis=1), _hinges(batch * (steps + 1))], axis=1)
    weights, *_ = np.linalg.lstsq(design / measured[:, None], np.ones_like(measured), rcond=None)
    tokens = np.arange(cost.batches[-1] * (cost.steps[-1] + 1) + 1, dtype=float)
    curve = np.maximum.accumulate(_hinges(tokens) @ weights[len(fixed) :])
    error = np.abs(design @ weights / measured - 1.0).max()
    return VerifyCost(curve, float(error))


def _hinges(tokens: FloatArray) -> FloatArray:
    return np.asarray(np.maximum(tokens[:, None] - np.array(KNOTS, dtype=float), 0.0))


def gain_of_own_depths(trace: Trace, verify: VerifyCost) -> float:
    """Return the per-request oracle's throughput over the one-depth oracle's, for the same work."""
    if trace.request_hazards is None or trace.population is None:
        raise ValueError("only a trace whose requests differ can tell")
    rounds = np.arange(0, trace.rounds, EVERY)
    reached = np.cumprod(trace.request_hazards, axis=-1)
    present = trace.population.requests[rounds]
    chances = np.where((present >= 0)[..., None], reached[present], 0.0)
    one = trace.rates[rounds, trace.oracle_depths[rounds]]
    own = np.maximum(one, _best_own_rate(trace, rounds, chances, verify.seconds))
    tokens = trace.tokens[rounds, trace.oracle_depths[rounds]]
    return float((tokens / one).sum() / (tokens / own).sum())


def _best_own_rate(trace: Trace, rounds: IntArray, chances: FloatArray, verify: FloatArray) -> FloatArray:
    """Return the highest rate over all deepest drafts and numbers of verified tokens.

    A request's chances fall with the position, so the likeliest drafts of a batch always form a prefix of each request.
    """
    batch = trace.batch[rounds]
    best = np.zeros(len(rounds))
    for deepest in trace.ladder:
        flat = chances[:, :, :deepest].reshape(len(rounds), -1)
        likeliest = -np.sort(-flat, axis=1)
        tokens = batch[:, None] + np.concatenate([np.zeros((len(rounds), 1)), np.cumsum(likeliest, axis=1)], axis=1)
        extra = np.minimum(np.arange(tokens.shape[1]), (batch * deepest)[:, None])
        saved = verify[(batch * (deepest + 1))[:, None]] - verify[batch[:, None] + extra]
        rate = tokens / (trace.seconds[rounds, deepest][:, None] - saved)
        best = np.maximum(best, rate.max(axis=1))
    return best
