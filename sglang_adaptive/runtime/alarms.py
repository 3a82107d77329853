"""The alarm that acceptance has collapsed. It compares shares at position 1, which hardly depend on the steps."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from sglang_adaptive.policy.observation import RoundObservation

logger = logging.getLogger(__name__)

ACCEPTANCE = "acceptance"
"""Almost no draft is accepted, or far fewer than before."""
NAMES = (ACCEPTANCE,)
"""Every alarm that may be raised."""
CAUSES = "; docs/troubleshooting.md has likely causes"
WINDOW_SECONDS, WINDOW_DRAFTS = 120.0, 2000
"""A window ends when it has both: a busy server has that many drafts in a second, of few requests."""
NOTHING = 0.02
"""Share of accepted drafts below which a draft that never did better accepts almost nothing. The lowest that is
recorded is 0.14; one that always proposes the same frequent token may get 0.01."""
FALLEN = 0.2
"""Share of accepted drafts, relative to that of all windows before, below which acceptance has collapsed. In recorded
text other kinds leave 0.25 of it or more, and temperature 1 after 0 leaves 0.29, or 0.16 if all is translation."""
BACK = 2.0
"""An alarm is over at this many times the share below which it is raised."""


class AcceptanceWatch:
    """Whether the draft's acceptance has collapsed, judged at the end of each window of rounds.

    Verified drafts and shadow drafts count, because the policy may stay at zero steps when nothing is accepted. Windows
    with an alarm do not lower the share that later ones are compared with.
    """

    def __init__(self, wall_time: Callable[[], float] = time.time) -> None:
        self._wall_time = wall_time
        self.alarm: dict[str, Any] | None = None
        """The alarm of the latest window as JSON: ``name``, ``since`` (Unix seconds), ``words`` (a sentence without its
        period) and ``details`` (its numbers); None if acceptance is as usual, or before the first window's end."""
        self._begun = 0.0
        self._accepted = self._drafts = 0
        self._usual_accepted = self._usual_drafts = 0

    def raise_alarm(self, finding: str, details: dict[str, Any]) -> None:
        """Raise the alarm, or update its *finding*; only the beginning is logged."""
        words = finding + CAUSES
        since = self._wall_time() if self.alarm is None else self.alarm["since"]
        if self.alarm is None:
            logger.warning("adaptive: alarm, %s: %s", ACCEPTANCE, words)
        self.alarm = {"name": ACCEPTANCE, "since": since, "words": words, "details": details}

    def end(self) -> None:
        """End the alarm, if it is raised."""
        if self.alarm is not None:
            logger.info("adaptive: alarm over, %s", ACCEPTANCE)
        self.alarm = None

    def restart(self) -> None:
        """End the alarm, and forget all rounds."""
        self.end()
        self._accepted = self._drafts = self._usual_accepted = self._usual_drafts = 0

    def add(self, now: float, observation: RoundObservation) -> None:
        """Count a round whose result arrived at *now*, in seconds; at the end of a window, judge it."""
        if observation.looked_up:
            return
        counts = observation.num_correct_drafts_per_req if observation.steps else observation.shadow_accepts
        if not counts:
            return
        if not self._drafts:
            self._begun = now
        self._drafts += len(counts)
        self._accepted += len(counts) - counts.count(0)
        if self._drafts >= WINDOW_DRAFTS and now - self._begun >= WINDOW_SECONDS:
            self._judge()
            self._accepted = self._drafts = 0

    def _judge(self) -> None:
        usual = self._usual_accepted / self._usual_drafts if self._usual_drafts else None
        least = NOTHING if usual is None else FALLEN * usual
        share = self._accepted / self._drafts
        if share >= (least if self.alarm is None else BACK * least):
            self.end()
            self._usual_accepted += self._accepted
            self._usual_drafts += self._drafts
            return
        latest = f"the latest {self._drafts} at position 1"
        if usual is None:
            words = f"almost no draft has been accepted since the start: {self._accepted} of {latest}"
        else:
            words = f"far fewer drafts are accepted than before: {share:.1%} of {latest} instead of {usual:.0%}"
        details = {"accepted": self._accepted, "drafts": self._drafts, "share": share, "usual_share": usual}
        self.raise_alarm(words, details)
