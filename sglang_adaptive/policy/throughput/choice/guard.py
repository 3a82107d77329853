"""Speculation may cost 1% of the throughput that zero steps would have had over any 500 rounds, and no more.

The unit is one round at zero steps. A round that takes ``t`` and yields ``m`` tokens a request has lost ``t / t0 - m``
of them. What counts is the worst stretch that ends now and began within the last 500 rounds, because the next window
may begin where that stretch does. Buckets of 50 rounds keep that in constant memory: a stretch is a suffix of one
bucket and all buckets after it.
"""

from __future__ import annotations

from collections import deque

WINDOW_ROUNDS = 500
BUCKET_ROUNDS = 50
ALLOWANCE = 3.5
"""Rounds that may be lost in a window: 1% of it, less what the rounds lose whose results are under way."""
WARY = 1.5
"""Rounds lost from which a change of acceptance for the worse takes less evidence (``change``)."""
DOUBT_PER_LOST = 0.25
"""Standard deviations by which speculation must promise more than zero steps, for each round lost.

Not a fixed gain: with one request most of a loss is bad luck. On an H200 three steps at p = 0.2 are worth 4% more than
zero steps, and one step 10%, and yet more than half of the rounds with three end a stretch that lost 1.5.
"""
LEAST_LEFT = 0.25
"""Rounds in a window that probes may lose even when the allowance is used up, or a draft could never come back."""


class ZeroGuard:
    """The account against never speculating."""

    __slots__ = ("_buckets", "_net", "_rounds", "_worst_after", "lost")

    def __init__(self) -> None:
        self.lost = 0.0
        """Rounds lost by the worst stretch that ends now; probes out of zero steps not counted."""
        self._buckets: deque[tuple[float, float]] = deque(maxlen=WINDOW_ROUNDS // BUCKET_ROUNDS)
        """Net loss of a bucket, and loss of its worst suffix."""
        self._net = 0.0
        self._worst_after = 0.0
        self._rounds = 0

    def book(self, loss: float) -> None:
        """Enter a round's loss; negative when it gained."""
        self.lost = max(0.0, self.lost + loss)
        self._net += loss
        self._worst_after = max(0.0, self._worst_after + loss)
        self._rounds += 1
        if self._rounds >= BUCKET_ROUNDS:
            self._close_bucket()

    def _close_bucket(self) -> None:
        self._buckets.append((self._net, self._worst_after))
        self._net = self._worst_after = 0.0
        self._rounds = 0
        later = worst = 0.0
        for net, suffix in reversed(self._buckets):
            worst = max(worst, later + suffix)
            later += net
        self.lost = worst

    @property
    def wary(self) -> bool:
        """Whether enough is lost to take a draft's failures more seriously."""
        return self.lost >= WARY

    @property
    def doubts(self) -> float:
        """Standard deviations by which speculation must promise more than zero steps."""
        return DOUBT_PER_LOST * self.lost

    def spacing(self, loss: float) -> float:
        """Return the rounds to leave between probes out of zero steps that may lose *loss* each."""
        return loss * WINDOW_ROUNDS / max(LEAST_LEFT, ALLOWANCE - self.lost)
