"""The alarm that acceptance has collapsed. It compares shares at position 1, which hardly depend on the steps."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

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


class Finding(NamedTuple):
    """Something that the server has noticed about itself and that an operator should know: the content of an alarm."""

    words: str
    """A sentence without its period, for the log and for people."""
    details: Mapping[str, Any]
    """The numbers behind it, as JSON builtins."""


class AcceptanceWatch:
    """Whether the draft's acceptance has collapsed, judged at the end of each window of rounds.

    Verified drafts and shadow drafts count, because the policy may stay at zero steps when nothing is accepted. Windows
    with an alarm do not lower the share that later ones are compared with.
    """

    def __init__(self, wall_time: Callable[[], float] = time.time) -> None:
        self._wall_time = wall_time
        self.finding: Finding | None = None
        """The finding of the latest window; None if acceptance is as usual, or before the first window's end."""
        self._since = self._begun = 0.0
        self._accepted = self._drafts = 0
        self._usual_accepted = self._usual_drafts = 0

    def set(self, finding: Finding | None) -> None:
        """Raise the alarm, or update its *finding*; None ends it. The beginning and the end are logged."""
        if finding is not None and self.finding is None:
            self._since = self._wall_time()
            logger.warning("adaptive: alarm, %s: %s", ACCEPTANCE, finding.words + CAUSES)
        elif finding is None and self.finding is not None:
            logger.info("adaptive: alarm over, %s", ACCEPTANCE)
        self.finding = finding

    def restart(self) -> None:
        """End the alarm, and forget all rounds."""
        self.set(None)
        self._accepted = self._drafts = self._usual_accepted = self._usual_drafts = 0

    def as_list(self) -> list[dict[str, Any]]:
        """Return the alarm, if raised, as JSON: ``name``, ``since`` (Unix seconds), ``words`` and ``details``."""
        if self.finding is None:
            return []
        words, details = self.finding
        return [{"name": ACCEPTANCE, "since": self._since, "words": words + CAUSES, "details": dict(details)}]

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
        if share >= (least if self.finding is None else BACK * least):
            self.set(None)
            self._usual_accepted += self._accepted
            self._usual_drafts += self._drafts
            return
        latest = f"the latest {self._drafts} at position 1"
        if usual is None:
            words = f"almost no draft has been accepted since the start: {self._accepted} of {latest}"
        else:
            words = f"far fewer drafts are accepted than before: {share:.1%} of {latest} instead of {usual:.0%}"
        details = {"accepted": self._accepted, "drafts": self._drafts, "share": share, "usual_share": usual}
        self.set(Finding(words, details))
