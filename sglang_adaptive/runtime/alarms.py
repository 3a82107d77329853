"""What the server notices about itself: the alarms now raised, and the watch over the draft's acceptance."""

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


class Finding(NamedTuple):
    """Something that the server has noticed about itself and that an operator should know: the content of an alarm."""

    words: str
    """A sentence without its period, for the log and for people."""
    details: Mapping[str, Any]
    """The numbers behind it, as JSON builtins."""


class Alarms:
    """The alarms now raised, by name; each is logged when it is raised and when it is over."""

    def __init__(self, wall_time: Callable[[], float] = time.time) -> None:
        self._wall_time = wall_time
        self._raised: dict[str, tuple[float, Finding]] = {}

    def set(self, name: str, finding: Finding | None) -> None:
        """Raise alarm *name*, one of NAMES, or update its *finding*; None ends it."""
        since, before = self._raised.get(name, (self._wall_time(), None))
        if finding is not None:
            self._raised[name] = since, finding
            if before is None:
                logger.warning("adaptive: alarm, %s: %s", name, finding.words + CAUSES)
        elif before is not None:
            del self._raised[name]
            logger.info("adaptive: alarm over, %s", name)

    @property
    def raised(self) -> frozenset[str]:
        """The names of the alarms now raised."""
        return frozenset(self._raised)

    def as_list(self) -> list[dict[str, Any]]:
        """Return JSON builtins, oldest first: ``name``, ``since`` (Unix seconds), ``words`` and ``details``."""
        return [
            {"name": name, "since": since, "words": finding.words + CAUSES, "details": dict(finding.details)}
            for name, (since, finding) in self._raised.items()
        ]


# The watch over acceptance. It compares shares at position 1, which hardly depend on the steps.


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

    def __init__(self) -> None:
        self.finding: Finding | None = None
        """The finding of the latest window; None if acceptance is as usual, or before the first window's end."""
        self._begun = 0.0
        self._accepted = self._drafts = 0
        self._usual_accepted = self._usual_drafts = 0

    def add(self, now: float, observation: RoundObservation) -> bool:
        """Count a round whose result arrived at *now*, in seconds; return whether it ends a window."""
        if observation.looked_up:
            return False
        counts = observation.num_correct_drafts_per_req if observation.steps else observation.shadow_accepts
        if not counts:
            return False
        if not self._drafts:
            self._begun = now
        self._drafts += len(counts)
        self._accepted += len(counts) - counts.count(0)
        if self._drafts < WINDOW_DRAFTS or now - self._begun < WINDOW_SECONDS:
            return False
        self._judge()
        self._accepted = self._drafts = 0
        return True

    def _judge(self) -> None:
        usual = self._usual_accepted / self._usual_drafts if self._usual_drafts else None
        least = NOTHING if usual is None else FALLEN * usual
        share = self._accepted / self._drafts
        if share >= (least if self.finding is None else BACK * least):
            self.finding = None
            self._usual_accepted += self._accepted
            self._usual_drafts += self._drafts
            return
        latest = f"the latest {self._drafts} at position 1"
        if usual is None:
            words = f"almost no draft has been accepted since the start: {self._accepted} of {latest}"
        else:
            words = f"far fewer drafts are accepted than before: {share:.1%} of {latest} instead of {usual:.0%}"
        details = {"accepted": self._accepted, "drafts": self._drafts, "share": share, "usual_share": usual}
        self.finding = Finding(words, details)
