"""Runs a suite and keeps what a report needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from sglang_adaptive.lab.simulate import score
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


@dataclass(frozen=True)
class TraceScore:
    """One policy on one trace."""

    share: float
    """Share of the oracle's throughput, in expectation."""
    drawn_share: float
    """The same from drawn tokens and noisy seconds: what a wall clock would have shown."""
    plain_ratio: float
    """Expected tokens/s of the whole trace over the oracle's; ``score`` explains why it is not the share."""
    zero_window: float
    """Worst 500-round window against never speculating."""
    switches: float
    """Depth changes per 200 rounds after the warm-up, probes included."""
    curve: tuple[float, ...]
    """Share by bucket of rounds since the start."""
    recoveries: tuple[int, ...]
    """Rounds to recover after each change of regime."""


@dataclass(eq=False)
class SuiteResult:
    """Every policy on every trace of a suite."""

    suite: Suite
    setting: Setting
    scores: dict[str, list[TraceScore]] = field(default_factory=dict)

    def mean_share(self, policy: str) -> float:
        """Return the mean over the traces."""
        return float(np.mean([s.share for s in self.scores[policy]]))

    def worst_share(self, policy: str) -> float:
        """Return the lowest over the traces."""
        return min(s.share for s in self.scores[policy])

    def mean_curve(self, policy: str) -> FloatArray:
        """Return the start-up curve averaged over the traces."""
        return np.asarray(np.mean([s.curve for s in self.scores[policy]], axis=0))


def run_suite(
    suite: Suite, setting: Setting, contenders: list[Contender], tick: Callable[[], object] = lambda: None
) -> SuiteResult:
    """Play every contender on every trace of *suite*; *tick* is called after each."""
    result = SuiteResult(suite, setting, {contender.name: [] for contender in contenders})
    for trace in suite.traces(setting):
        for contender in contenders:
            result.scores[contender.name].append(score_trace(trace, play(contender.make(trace), trace)))
            tick()
    return result


def score_trace(trace: Trace, depths: IntArray) -> TraceScore:
    """Return every score of one run."""
    ends = [*trace.changes[1:], trace.rounds]
    return TraceScore(
        share=score.share(trace, depths),
        drawn_share=score.drawn_share(trace, depths),
        plain_ratio=score.tokens_per_second(trace, depths) / score.tokens_per_second(trace, trace.oracle_depths),
        zero_window=score.worst_window_against_zero(trace, depths),
        switches=score.switches_per_200(depths, min(WARMUP, trace.rounds // 2)),
        curve=tuple(score.curve(trace, depths, BUCKET).tolist()),
        recoveries=tuple(
            score.recovery_rounds(trace, depths, change, end, RECOVERED, RECOVERY_WINDOW)
            for change, end in zip(trace.changes, ends, strict=False)
        ),
    )
