"""Whether shadow acceptance may be believed: it is compared with what is verified.

At zero steps the first draft is only compared with the text (``RoundObservation.shadow_accepts``); at other steps it is
verified. Around a change between the two both speak of the same text. The test is that of two proportions, with the
latest trials of either kind:

    z = (shadow - verified) / sqrt(p * (1 - p) * (1 / n_shadow + 1 / n_verified))      p: of both together

Where they disagree, what is verified counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from sglang_adaptive.policy.throughput.acceptance.estimator import SATURATION

MEMORY_TRIALS = 24.0
"""Trials, of both kinds together, after which a trial counts for 1/e. With 48 a text that turned hard was still taken
for a disagreement when zero steps began."""
LEAST_TRIALS = 8.0
"""Trials of either kind that a comparison needs: below, the normal approximation does not hold."""
DISAGREE, AGREE = 3.0, 1.0
"""|z| above which shadow acceptance is no longer believed, and below which it is believed again."""
TELLING = 0.25
"""Acceptance from which on agreement says something: a check that never finds a hit agrees with every bad draft."""


class ShadowTrust:
    """Compares shadow trials of the first draft with verified ones; both are [hits, trials]."""

    __slots__ = ("_shadow", "_verified", "believed", "disagreements")

    def __init__(self) -> None:
        self._shadow, self._verified = [0.0, 0.0], [0.0, 0.0]
        self.believed = True
        """Whether shadow acceptance may be learnt from."""
        self.disagreements = 0
        """Times that it was found to be wrong."""

    @property
    def verified_rate(self) -> float:
        """Acceptance of the first position by the latest verified rounds."""
        return _rate(*self._verified)

    def hear(self, hits: Sequence[int]) -> bool:
        """Take in a round's shadow accepts, 1 or 0 a request; say whether they are found to be wrong just now."""
        return self._compare(self._shadow, self._verified, hits)

    def verify(self, accepted: Sequence[int]) -> bool:
        """Take in the accepted drafts of each request; say whether shadow acceptance is found wrong just now."""
        return self._compare(self._verified, self._shadow, accepted)

    def _compare(self, one: list[float], other: list[float], accepted: Sequence[int]) -> bool:
        trials = len(accepted) / (1.0 + len(accepted) / SATURATION)
        fade = math.exp(-trials / MEMORY_TRIALS)
        other[0] *= fade
        other[1] *= fade
        if accepted:
            one[0] = one[0] * fade + trials * (1.0 - accepted.count(0) / len(accepted))
            one[1] = one[1] * fade + trials
        if other[1] < LEAST_TRIALS or one[1] < LEAST_TRIALS:
            return False
        common = _rate(one[0] + other[0], one[1] + other[1])
        rates = _rate(*one), _rate(*other)
        z = abs(rates[0] - rates[1]) / math.sqrt(common * (1.0 - common) * (1.0 / one[1] + 1.0 / other[1]))
        if self.believed and z > DISAGREE:
            self.believed = False
            self.disagreements += 1
            return True
        self.believed = self.believed or (z < AGREE and min(rates) > TELLING)
        return False


def _rate(hits: float, trials: float) -> float:
    """Return the share of hits, with one of each supposed: no sample proves a 0 or a 1."""
    return (hits + 1.0) / (trials + 2.0)
