"""Speculation may cost 1% of the throughput that zero steps would have had over any 500 rounds, and no more.

The unit is one round at zero steps. A round that takes ``t`` and yields ``m`` tokens a request has lost ``t / t0 - m``
of them. What counts is the worst stretch that ends now and began within the last 500 rounds.
"""

from __future__ import annotations

from collections import deque

WINDOW_ROUNDS, BUCKET_ROUNDS = 500, 50
"""Rounds of the promise, and those that share one entry of the account: memory stays constant."""
ALLOWANCE = 3.5
"""Rounds that may be lost in a window: 1% of it, less what the rounds lose whose results are under way."""
DEVIATIONS_PER_LOST = 0.5
"""Standard deviations by which speculation must promise more than zero steps, for each round lost. A fixed gain would
keep it away for good: with one request most of a loss is bad luck. With 0.25 a draft that fails at once costs 1.1% of
500 rounds at batch 1 (simulated)."""
LEAST_LEFT = 0.25
"""Rounds in a window that probes may lose even when the allowance is used up, or a draft could never come back."""
MARGIN = 0.01
"""Gain over zero steps that speculation must promise to go on; twice that to start: less than a start costs to try."""
STAY_ROUNDS = 10
"""Rounds that zero steps are kept once entered, so that they get timed."""


class BaselineLossBudget:
    """The account against never speculating."""

    __slots__ = ("_buckets", "_net", "_rounds", "_worst_after", "lost")

    def __init__(self) -> None:
        self.lost = 0.0
        """Rounds lost by the worst stretch that ends now; probes out of zero steps not counted."""
        self._buckets: deque[tuple[float, float]] = deque(maxlen=WINDOW_ROUNDS // BUCKET_ROUNDS)
        """Net loss of a bucket, and loss of its worst suffix: a stretch is such a suffix and all buckets after it."""
        self._net = self._worst_after = 0.0
        self._rounds = 0

    def book(self, loss: float) -> None:
        """Enter a round's loss; negative when it gained."""
        self.lost = max(0.0, self.lost + loss)
        self._net += loss
        self._worst_after = max(0.0, self._worst_after + loss)
        self._rounds += 1
        if self._rounds < BUCKET_ROUNDS:
            return
        self._buckets.append((self._net, self._worst_after))
        self._net = self._worst_after = 0.0
        self._rounds = 0
        later = worst = 0.0
        for net, suffix in reversed(self._buckets):
            worst = max(worst, later + suffix)
            later += net
        self.lost = worst

    def demands(self, deviation: float) -> float:
        """Return the gain over zero steps to ask for; *deviation* is that of the promised gain (log)."""
        return DEVIATIONS_PER_LOST * self.lost * deviation

    def spacing(self, loss: float) -> float:
        """Return the rounds to leave between probes out of zero steps that may lose *loss* each."""
        return loss * WINDOW_ROUNDS / max(LEAST_LEFT, ALLOWANCE - self.lost)
