"""Records each round in a file as the policy observes it: steps, accepted drafts by request, and times; no text.

The file consists of text lines. The first is a JSON object with ``format`` and ``version``. Then

    @ 3f0c... 91ab...    the requests of the following rounds, in this order, as salted ids
    3 20 9312            a round of 3 steps: the first request had 2 drafts accepted, the second none, and the result
                         arrived 9312 microseconds after the one before it, which is the round's time
    3 20 ~9312           the same where that is not the round's time: a prefill, other steps or another batch came first
    0 00 5127 +01        a round of zero steps that ran the draft extend (+), with shadow accepts of 0 and 1
    3 20 9312 h          an operator held the steps
    ! 12                 12 rounds were not written: the disk was too slow

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
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import IO

from sglang_adaptive.policy.observation import RoundNote

logger = logging.getLogger(__name__)

FORMAT, VERSION = "sglang-adaptive rounds", 3
WHO, LOST = "@", "!"
UNTIMED, HELD, EXTENDED = "~", "h", "+"
DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
WRITE_SECONDS = 0.5
"""Seconds between two writes, and the most that a killed server loses."""
CLOSE_SECONDS = 2.0
"""The most that the end of the process waits for the disk; SGLang gives it 15 s, and the cost profile comes after."""
MOST_WAITING = 4096
"""The most rounds that wait for the disk, a few MB or ten seconds of the fastest rounds; further ones are lost."""
ID_BYTES = 6
"""Bytes of a salted id: with a million requests, two share one with a probability of 0.2%."""


class RoundTrace:
    """A trace of rounds, written by a thread so that serving never waits for the disk; an error ends only the trace."""

    def __init__(self, file: Path, max_bytes: float) -> None:
        """Begin *file*; an existing one becomes ``FILE.1``. The first disk error is logged."""
        self.file = file
        self._most = max_bytes / 2.0
        self._key = secrets.token_bytes(16)
        self._waiting: deque[RoundNote] = deque()
        self._lost = 0
        self._who: Sequence[Hashable] | None = None
        self._written = 0
        self._out: IO[str] | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="round-trace", daemon=True)
        self._thread.start()

    def add(self, done: RoundNote) -> None:
        """Add a round; rounds with unknown requests are left out."""
        if not done.requests:
            return
        if len(self._waiting) < MOST_WAITING:
            self._waiting.append(done)
        else:
            self._lost += 1

    def end(self) -> None:
        """Accept no more rounds; the thread writes the waiting ones."""
        self._over.set()

    def close(self) -> None:
        """Accept no more rounds, and wait until all are written, at most CLOSE_SECONDS."""
        self.end()
        self._thread.join(CLOSE_SECONDS)

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
        for _ in range(len(self._waiting)):
            done = self._waiting.popleft()
            if self._written > self._most:
                self._begin()
            if done.requests != self._who:
                self._who = done.requests
                self._line(f"{WHO} {' '.join(map(self._salted, done.requests))}")
            self._line(_round(done))
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


def _round(done: RoundNote) -> str:
    digits = "".join([DIGITS[count] for count in done.num_correct_drafts_per_req])
    took = f"{'' if done.seconds else UNTIMED}{round(1e6 * (done.since_last or 0.0))}"
    marks = "" if done.chosen else HELD
    if not done.steps:
        marks += (EXTENDED if done.extended else "") + "".join(map(str, done.shadow_accepts))
    return f"{done.steps} {digits} {took} {marks}".rstrip()
