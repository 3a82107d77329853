"""Scores of one run against the oracle.

A round in a given state (batch, acceptance, cost) gives every depth a rate, ``E[tokens] / E[seconds]``; the oracle runs
the depth of the ladder with the highest rate. Over a stretch of rounds

    share = seconds that the oracle needs for the same expected tokens in the same states / seconds taken
          = sum_t E[tokens_t] / rate_oracle_t  /  sum_t E[seconds_t]

which is the ratio of the two throughputs on the same work. It is at most 1 for every policy on every trace, does not
depend on the luck of the draws, and over a stretch of one state equals the plain ratio of tokens/s. The plain ratio
over a whole trace is not used: if states differ, it rewards skipping speculation at small batches (which saves seconds
in the slow state), which users do not want, and it can exceed 1.
"""

from __future__ import annotations

import numpy as np

from sglang_adaptive.lab.simulate.cost import FloatArray
from sglang_adaptive.lab.simulate.trace import IntArray, Trace


def chosen(table: FloatArray, depths: IntArray) -> FloatArray:
    """Return the entry of each round's chosen depth."""
    return np.asarray(table[np.arange(len(depths)), depths])


def ideal_seconds(trace: Trace, depths: IntArray) -> FloatArray:
    """Return the seconds that the oracle needs for each round's expected tokens."""
    return chosen(trace.tokens, depths) / chosen(trace.rates, trace.oracle_depths)


def share(trace: Trace, depths: IntArray) -> float:
    """Return the share of the oracle's throughput over the whole trace."""
    return float(ideal_seconds(trace, depths).sum() / chosen(trace.seconds, depths).sum())


def curve(trace: Trace, depths: IntArray, bucket: int) -> FloatArray:
    """Return the share of each *bucket* rounds in turn; the last bucket may be shorter."""
    starts = np.arange(0, trace.rounds, bucket)
    needed = np.add.reduceat(ideal_seconds(trace, depths), starts)
    return np.asarray(needed / np.add.reduceat(chosen(trace.seconds, depths), starts))


def drawn_share(trace: Trace, depths: IntArray) -> float:
    """Return ``share`` from drawn tokens and the noisy clock; the two agree on long traces."""
    tokens = chosen(trace.drawn_tokens, depths)
    ideal = tokens / chosen(trace.rates, trace.oracle_depths) * trace.clock
    return float(ideal.sum() / (chosen(trace.seconds, depths) * trace.clock).sum())


def efficiency(trace: Trace, depths: IntArray) -> FloatArray:
    """Return each round's rate over the oracle's, in (0, 1]."""
    return chosen(trace.rates, depths) / chosen(trace.rates, trace.oracle_depths)


def tokens_per_second(trace: Trace, depths: IntArray) -> float:
    """Return the plain expected throughput over the whole trace."""
    return float(chosen(trace.tokens, depths).sum() / chosen(trace.seconds, depths).sum())


def worst_window_against_zero(trace: Trace, depths: IntArray, window: int = 500) -> float:
    """Return the lowest throughput over *window* rounds relative to never speculating, on the same work."""
    size = min(window, trace.rounds)
    without = chosen(trace.tokens, depths) / trace.rates[:, 0]
    return float(np.min(_rolling_sum(without, size) / _rolling_sum(chosen(trace.seconds, depths), size)))


def switches_per_200(depths: IntArray, warmup: int) -> float:
    """Return depth changes per 200 rounds after the first *warmup* rounds; a probe counts twice."""
    settled = depths[warmup:]
    return float(np.count_nonzero(np.diff(settled)) * 200.0 / max(1, len(settled) - 1))


def recovery_rounds(trace: Trace, depths: IntArray, change: int, until: int, level: float, window: int) -> int:
    """Return how many rounds after *change* the first *window* rounds start that average *level*."""
    size = max(1, min(window, until - change))
    smooth = _rolling_sum(efficiency(trace, depths)[change:until], size) / size
    back = np.flatnonzero(smooth >= level)
    return int(back[0]) if len(back) else until - change


def _rolling_sum(values: FloatArray, size: int) -> FloatArray:
    total = np.concatenate([[0.0], np.cumsum(values)])
    return np.asarray(total[size:] - total[:-size])
