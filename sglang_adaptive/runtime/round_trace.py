"""Records each round in a file: steps, and accepted drafts by request; no text, no tokens.

The file is lines of text. The first is a JSON object with ``format`` and ``version``. Then

    @ 3f0c... 91ab...    the requests of the rounds that follow, in this order, under salted ids
    3 20                 a round of 3 steps: the first request had 2 drafts accepted, the second none
    ! 12                 12 rounds were not written: the disk was too slow, or they did not verify all drafts
    ? 31 0:9:9 16:2:31   a finished request: what drafts from its own text would have brought. Of its output, 31 tokens
                         would lie in runs of lookups. By the tokens that agree before the drafts, at least 0 and at
                         least 16, so many rounds would have yielded so many tokens; see ``lookups.tally``

Accepted drafts are one base-36 digit each. The salt is drawn when the server starts and never written, so ids of two
starts are unrelated. A file that reaches half of the allowed size replaces ``FILE.1``, and a new file begins; ids stay.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import secrets
import threading
from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from pathlib import Path
from typing import IO

from sglang_adaptive.policy.observation import RoundObservation

logger = logging.getLogger(__name__)

FORMAT, VERSION = "sglang-adaptive rounds", 2
WHO, LOST, LOOKED_UP = "@", "!", "?"
DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
WRITE_SECONDS = 0.5
"""Seconds between two writes; a killed server loses at most as many."""
MOST_WAITING = 4096
"""The most rounds that wait for the disk, some MB; further ones are lost. Ten seconds of the fastest rounds."""
ID_BYTES = 6
"""Digits of a salted id: with a million requests, two share one with a probability of 0.2%."""


class RoundTrace:
    """A trace of rounds. A thread writes it, so serving never waits for the disk; an error ends only the trace."""

    def __init__(self, file: Path, max_bytes: float) -> None:
        """Begin *file*; an existing one becomes ``FILE.1``. The first error of the disk is logged."""
        self.file = file
        self._most = max_bytes / 2.0
        self._key = secrets.token_bytes(16)
        self._waiting: deque[RoundObservation] = deque()
        self._looked_up: deque[str] = deque(maxlen=MOST_WAITING)
        self._lost = 0
        self._who: Sequence[Hashable] | None = None
        self._written = 0
        self._out: IO[str] | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="round-trace", daemon=True)
        self._thread.start()

    def add(self, observation: RoundObservation) -> None:
        """Add a round; one with unknown requests is left out. What a budget did not verify is not known."""
        if not observation.requests:
            return
        if len(self._waiting) < MOST_WAITING and observation.budget is None:
            self._waiting.append(observation)
        else:
            self._lost += 1

    def add_lookups(self, rows: Iterable[tuple[int, int, int]], run_tokens: int) -> None:
        """Add a finished request, from any thread; *rows* are (least match, rounds, tokens) of its lookups."""
        told = " ".join(f"{match}:{rounds}:{tokens}" for match, rounds, tokens in rows if rounds)
        self._looked_up.append(f"{LOOKED_UP} {run_tokens} {told}")

    def end(self) -> None:
        """Accept no more rounds; the thread writes those that wait."""
        self._over.set()

    def close(self) -> None:
        """Accept no more rounds, and wait until all are written."""
        self.end()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._begin()
            while not self._over.wait(WRITE_SECONDS):
                self._write()
            self._write()
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            logger.warning("adaptive: rounds are no longer written to %s: %s", self.file, reason)
        finally:
            if self._out is not None:
                self._out.close()

    def _begin(self) -> None:
        if self._out is not None:
            self._out.close()
        if self.file.exists():
            os.replace(self.file, self.file.with_name(f"{self.file.name}.1"))
        self._out = self.file.open("w", encoding="ascii")
        self._who, self._written = None, 0
        self._line(json.dumps({"format": FORMAT, "version": VERSION}))

    def _write(self) -> None:
        """Write every waiting round."""
        for _ in range(len(self._waiting)):
            done = self._waiting.popleft()
            if self._written > self._most:
                self._begin()
            if done.requests != self._who:
                self._who = done.requests
                self._line(f"{WHO} {' '.join(map(self._salted, done.requests))}")
            digits = "".join([DIGITS[count] for count in done.num_correct_drafts_per_req])
            self._line(f"{done.steps} {digits}")
        for _ in range(len(self._looked_up)):
            self._line(self._looked_up.popleft())
        if self._lost:
            lost, self._lost = self._lost, 0
            self._line(f"{LOST} {lost}")
        if self._out is not None:
            self._out.flush()

    def _line(self, text: str) -> None:
        assert self._out is not None
        self._written += self._out.write(text + "\n")

    def _salted(self, request: Hashable) -> str:
        return hashlib.blake2b(str(request).encode(), key=self._key, digest_size=ID_BYTES).hexdigest()
