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
        return _rate(self._verified)

    def hear(self, hits: Sequence[int]) -> bool:
        """Take in a round's shadow accepts, 1 or 0 a request; say whether they are found to be wrong just now."""
        return self._add(self._shadow, hits)

    def verify(self, accepted: Sequence[int]) -> bool:
        """Take in the accepted drafts of each request; say whether shadow acceptance is found wrong just now."""
        return self._add(self._verified, accepted)

    def _add(self, kind: list[float], accepted: Sequence[int]) -> bool:
        requests = len(accepted)
        if not requests:
            return False
        share = 1.0 / (1.0 + requests / SATURATION)
        fade = math.exp(-requests * share / MEMORY_TRIALS)
        for counts in (self._shadow, self._verified):
            counts[0] *= fade
            counts[1] *= fade
        kind[0] += share * (requests - accepted.count(0))
        kind[1] += share * requests
        return self._compare()

    def _compare(self) -> bool:
        shadow, verified = self._shadow, self._verified
        if min(shadow[1], verified[1]) < LEAST_TRIALS:
            return False
        common = _rate([shadow[0] + verified[0], shadow[1] + verified[1]])
        spread = math.sqrt(common * (1.0 - common) * (1.0 / shadow[1] + 1.0 / verified[1]))
        z = abs(_rate(shadow) - _rate(verified)) / spread
        if self.believed and z > DISAGREE:
            self.believed = False
            self.disagreements += 1
            return True
        if not self.believed and z < AGREE and min(_rate(shadow), _rate(verified)) > TELLING:
            self.believed = True
        return False


def _rate(counts: Sequence[float]) -> float:
    """Return the share of hits, with one of each supposed: no sample proves a 0 or a 1."""
    return (counts[0] + 1.0) / (counts[1] + 2.0)
