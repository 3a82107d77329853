"""Scores of one run against the oracle, and of every policy on every trace of a suite.

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

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sglang_adaptive.lab.simulate.contenders import Contender
from sglang_adaptive.lab.simulate.cost import FloatArray
from sglang_adaptive.lab.simulate.engine import play
from sglang_adaptive.lab.simulate.scenes import Setting, Suite
from sglang_adaptive.lab.simulate.trace import IntArray, Trace

BUCKET = 50
"""Rounds per point of a start-up curve."""
WARMUP = 200
"""Rounds left out when counting the switches of a settled run."""
RECOVERED, RECOVERY_WINDOW = 0.95, 10
"""Recovered: ten rounds in a row that average this share of the oracle."""


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


def worst_window_against_zero(trace: Trace, depths: IntArray) -> float:
    """Return the lowest throughput over 500 rounds relative to never speculating, on the same work."""
    size = min(500, trace.rounds)
    without = chosen(trace.tokens, depths) / trace.rates[:, 0]
    return float(np.min(_rolling_sum(without, size) / _rolling_sum(chosen(trace.seconds, depths), size)))


def switches_per_200(depths: IntArray, warmup: int) -> float:
    """Return depth changes per 200 rounds after the first *warmup* rounds; a probe counts twice."""
    settled = depths[warmup:]
    return float(np.count_nonzero(np.diff(settled)) * 200.0 / max(1, len(settled) - 1))


def recovery_rounds(trace: Trace, depths: IntArray, change: int, until: int) -> int:
    """Return how many rounds after *change* ten rounds start that average 95% of the oracle's rates."""
    size = max(1, min(RECOVERY_WINDOW, until - change))
    smooth = _rolling_sum(efficiency(trace, depths)[change:until], size) / size
    back = np.flatnonzero(smooth >= RECOVERED)
    return int(back[0]) if len(back) else until - change


def _rolling_sum(values: FloatArray, size: int) -> FloatArray:
    total = np.concatenate([[0.0], np.cumsum(values)])
    return np.asarray(total[size:] - total[:-size])


# Every policy on every trace of a suite.


@dataclass(frozen=True)
class TraceScore:
    """One policy on one trace."""

    share: float
    """Share of the oracle's throughput, in expectation."""
    drawn_share: float
    """The same from drawn tokens and noisy seconds: what a wall clock would have shown."""
    plain_ratio: float
    """Expected tokens/s of the whole trace over the oracle's."""
    zero_window: float
    """Worst 500-round window against never speculating."""
    switches: float
    """Depth changes per 200 rounds after the warm-up, probes included."""
    curve: tuple[float, ...]
    """Share by bucket of rounds since the start."""
    recoveries: tuple[int, ...]
    """Rounds to recover after each change of regime."""


Scores = dict[str, list[TraceScore]]
"""By policy, those of the traces of a suite."""


def run_suite(
    suite: Suite, setting: Setting, contenders: list[Contender], tick: Callable[[], object] = lambda: None
) -> Scores:
    """Play every contender on every trace of *suite*; *tick* is called after each."""
    scores: Scores = {contender.name: [] for contender in contenders}
    for trace in suite.traces(setting):
        for contender in contenders:
            scores[contender.name].append(score_trace(trace, play(contender.make(trace), trace)))
            tick()
    return scores


def score_trace(trace: Trace, depths: IntArray) -> TraceScore:
    """Return every score of one run."""
    ends = [*trace.changes[1:], trace.rounds]
    return TraceScore(
        share=share(trace, depths),
        drawn_share=drawn_share(trace, depths),
        plain_ratio=tokens_per_second(trace, depths) / tokens_per_second(trace, trace.oracle_depths),
        zero_window=worst_window_against_zero(trace, depths),
        switches=switches_per_200(depths, min(WARMUP, trace.rounds // 2)),
        curve=tuple(curve(trace, depths, BUCKET).tolist()),
        recoveries=tuple(
            recovery_rounds(trace, depths, change, end) for change, end in zip(trace.changes, ends, strict=False)
        ),
    )
