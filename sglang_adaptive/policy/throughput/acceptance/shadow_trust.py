"""Whether what zero steps hear of the draft may be believed: it is held against what is verified.

At zero steps the first draft is only compared with the text (``RoundObservation.shadow_accepts``); at other depths it
is verified. Around a change between the two, both speak of the same text, so both must find the same acceptance of the
first position. The test is that of two proportions, with the latest trials of either kind:

    z = (heard - verified) / sqrt(p * (1 - p) * (1 / n_heard + 1 / n_verified))        p: of both together

Where they disagree, what is verified counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from sglang_adaptive.policy.throughput.acceptance.estimator import SATURATION

MEMORY_TRIALS = 48.0
"""Trials, of both kinds together, after which a trial counts for 1/e: both are known around a change alone."""
LEAST_TRIALS = 8.0
"""Trials of either kind that a comparison needs."""
DISAGREE, AGREE = 3.0, 1.0
"""|z| above which what is heard is no longer believed, and below which it is believed again."""
TELLING = 0.25
"""Acceptance from which on agreement says something: a sense that never hears a hit agrees with every bad draft."""


class _Trials:
    """Hits and trials of one kind, forgotten exponentially."""

    __slots__ = ("hits", "trials")

    def __init__(self) -> None:
        self.hits = self.trials = 0.0

    def fade(self, factor: float) -> None:
        self.hits *= factor
        self.trials *= factor

    @property
    def rate(self) -> float:
        """Share of hits, with one of each supposed: no sample proves a 0 or a 1."""
        return (self.hits + 1.0) / (self.trials + 2.0)


class ShadowTrust:
    """Compares first drafts that were heard of with first drafts that were verified."""

    __slots__ = ("_heard", "_verified", "believed", "disagreements")

    def __init__(self) -> None:
        self._heard, self._verified = _Trials(), _Trials()
        self.believed = True
        """Whether what is heard may be learnt from."""
        self.disagreements = 0
        """Times that it was found to be wrong."""

    @property
    def verified_rate(self) -> float:
        """Acceptance of the first position by the latest verified rounds."""
        return self._verified.rate

    def hear(self, hits: Sequence[int]) -> bool:
        """Take in what a zero-step round heard, 1 or 0 a request; say whether it is found to be wrong just now."""
        return self._add(self._heard, sum(map(bool, hits)), len(hits))

    def verify(self, correct_drafts: Sequence[int]) -> bool:
        """Take in the accepted drafts of each request of a drafted round; say whether hearing is found wrong just now.

        A hit is a request whose first draft was accepted.
        """
        return self._add(self._verified, sum(map(bool, correct_drafts)), len(correct_drafts))

    def changed(self, heard: bool) -> None:
        """Forget the trials, *heard* or verified, that noticed a change of acceptance: most are of the text before."""
        if heard:
            self._heard = _Trials()
        else:
            self._verified = _Trials()

    def _add(self, kind: _Trials, hits: int, requests: int) -> bool:
        if not requests:
            return False
        share = 1.0 / (1.0 + requests / SATURATION)  # requests of one round share their moment
        fade = math.exp(-requests * share / MEMORY_TRIALS)
        self._heard.fade(fade)
        self._verified.fade(fade)
        kind.hits += hits * share
        kind.trials += requests * share
        return self._compare()

    def _compare(self) -> bool:
        heard, verified = self._heard, self._verified
        if min(heard.trials, verified.trials) < LEAST_TRIALS:
            return False
        common = (heard.hits + verified.hits + 1.0) / (heard.trials + verified.trials + 2.0)
        spread = math.sqrt(common * (1.0 - common) * (1.0 / heard.trials + 1.0 / verified.trials))
        z = abs(heard.rate - verified.rate) / spread
        if self.believed and z > DISAGREE:
            self.believed = False
            self.disagreements += 1
            return True
        if not self.believed and z < AGREE and min(heard.rate, verified.rate) > TELLING:
            self.believed = True
        return False
