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
"""Once so much is lost, speculation must promise clearly more than zero steps."""
WARY_MARGIN, SPENT_MARGIN = 0.1, 0.3
WARY_DOUBT, SPENT_DOUBT = 0.5, 2.0
"""What it must promise once WARY, and once the whole allowance, is lost: a gain, and standard deviations of it."""
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
        """Whether enough is lost to ask for more than usual."""
        return self.lost >= WARY

    def demands(self) -> tuple[float, float]:
        """Return the gain over zero steps that speculation must promise, and by how many standard deviations."""
        if self.lost < WARY:
            return 0.0, 0.0
        return (WARY_MARGIN, WARY_DOUBT) if self.lost < ALLOWANCE else (SPENT_MARGIN, SPENT_DOUBT)

    def spacing(self, loss: float) -> float:
        """Return the rounds to leave between probes out of zero steps that may lose *loss* each."""
        return loss * WINDOW_ROUNDS / max(LEAST_LEFT, ALLOWANCE - self.lost)
