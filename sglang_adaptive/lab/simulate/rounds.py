"""Reads the rounds that a server recorded, and re-cuts them into texts that any depth can be played on.

`sglang_adaptive.runtime.round_trace` has the format.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sglang_adaptive.lab.simulate.cost import SimulationError
from sglang_adaptive.lab.simulate.real.texts import Texts
from sglang_adaptive.policy.options import MAX_STEPS
from sglang_adaptive.runtime.round_trace import DIGITS, EXTENDED, FORMAT, HELD, LOST, UNTIMED, VERSION, WHO

_VALUE = {digit: value for value, digit in enumerate(DIGITS)}
_ROUND = re.compile(rf"(\d+) ([{DIGITS}]+) ({UNTIMED}?)(\d+)(?: ({HELD}?)({re.escape(EXTENDED)}?)([01]*))?")


class Recorded(NamedTuple):
    """A round as the server's policy observed it."""

    requests: Sequence[str]
    steps: int
    counts: Sequence[int]
    """Accepted drafts by request."""
    since_last: float
    """Seconds from the result before it to this one."""
    timed: bool
    """Whether that is the time of the round."""
    held: bool
    """Whether an operator held the steps."""
    extended: bool
    """At 0 steps: whether the round ran the draft extend."""
    shadow_accepts: Sequence[int]


@dataclass(eq=False)
class Rounds:
    """What a server recorded: its rounds, and every request's rounds."""

    stream: list[Recorded] = field(default_factory=list)
    """The rounds in the order of their results."""
    requests: dict[str, list[list[tuple[int, int]]]] = field(default_factory=dict)
    """By request, in arrival order: stretches of (steps, accepted drafts) without a gap."""
    batches: Counter[int] = field(default_factory=Counter)
    """Rounds by their number of requests."""
    steps: Counter[int] = field(default_factory=Counter)
    """Rounds by their steps."""
    lost: int = 0
    """Rounds that the server could not record."""

    @property
    def count(self) -> int:
        """Total rounds."""
        return self.steps.total()


def read_rounds(file: Path) -> Rounds:
    """Return the rounds in *file*, which may be gzipped (``.gz``), after those of ``FILE.1`` if that exists.

    The last line may be incomplete, as a killed server leaves it.

    Raises:
        SimulationError: a file cannot be read, or is not a trace of rounds; one line, with file, line and value.
    """
    older = file.with_name(f"{file.name}.1")
    found = Rounds()
    for part in (older, file) if older.exists() else (file,):
        _Reader(part, found).read()
    if not found.count:
        raise SimulationError(f"--trace {file}: contains no rounds; expected the rounds of a server that had requests")
    return found


class _Reader:
    def __init__(self, file: Path, found: Rounds) -> None:
        self._file, self._found = file, found
        self._who: list[str] = []

    def read(self) -> None:
        lines = self._lines()
        first = next(lines, "")
        try:
            about = json.loads(first)
        except ValueError:
            about = None
        if not isinstance(about, dict) or about.get("format") != FORMAT or about.get("version") != VERSION:
            expected = f'"format": "{FORMAT}", "version": {VERSION}'
            raise SimulationError(f"--trace {self._file}: line 1: {first[:60]!r}; expected {expected}")
        for number, line in enumerate(lines, 2):
            if not self._take(line):
                expected = "requests after @, or steps, one digit a request and microseconds"
                raise SimulationError(f"--trace {self._file}: line {number}: {line[:60]!r}; expected {expected}")

    def _lines(self) -> Iterator[str]:
        try:
            content = self._file.read_bytes()
            text = (gzip.decompress(content) if self._file.suffix == ".gz" else content).decode("ascii")
        except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
            reason = (isinstance(error, OSError) and error.strerror) or "not a round trace"
            raise SimulationError(f"--trace {self._file}: cannot be read ({reason})") from error
        yield from text[: text.rfind("\n") + 1].splitlines()

    def _take(self, line: str) -> bool:
        """Process a line; return whether it is well formed."""
        first, *rest = line.split(" ")
        if first == WHO:
            self._who = rest
            return bool(rest)
        if first == "?":  # what lookups would have yielded, which servers once counted
            return True
        if first == LOST:
            return len(rest) == 1 and self._lose(rest[0])
        return self._round(_ROUND.fullmatch(line))

    def _lose(self, rounds: str) -> bool:
        if not rounds.isdecimal():
            return False
        self._found.lost += int(rounds)
        for stretches in self._found.requests.values():
            if stretches[-1]:
                stretches.append([])
        return True

    def _round(self, found: re.Match[str] | None) -> bool:
        if found is None:
            return False
        steps, counts = int(found[1]), [_VALUE[digit] for digit in found[2]]
        if steps > MAX_STEPS or len(counts) != len(self._who) or max(counts) > steps:
            return False
        shadow = [int(digit) for digit in found[7] or ""]
        timed, held, extended = not found[3], bool(found[5]), bool(steps or found[6])
        self._found.stream.append(
            Recorded(self._who, steps, counts, 1e-6 * int(found[4]), timed, held, extended, shadow)
        )
        for request, count in zip(self._who, counts, strict=True):
            self._found.requests.setdefault(request, [[]])[-1].append((steps, count))
        self._found.batches[len(counts)] += 1
        self._found.steps[steps] += 1
        return True


# A run is the tokens of a request from one rejected draft to the next, regardless of the rounds that produced them. It
# takes ``ceil(run / (t + 1))`` rounds at t steps. At or below the steps that ran this is nearly exact: a draft that was
# right is right again from a later start. Above them it is only a bound, because a run was only seen to continue
# after a round ended, from a new draft: deeper chains would have been rejected earlier.


NAME = "traffic"
FEWEST_ROUNDS = 1000
"""Below this many rounds of requests, shares of depths are mostly luck."""


@dataclass(frozen=True)
class Seen:
    """What is known about one depth."""

    steps: int
    rounds: int
    """Rounds of requests drafted at it."""
    tokens_when_run: float | None
    """Tokens per round of a request when it ran; None if it did not."""
    tokens_recut: float
    """Tokens per round of a request with all runs re-cut."""
    from_here_up: float
    """Share of the drafted tokens from this depth or a deeper one."""

    @property
    def trust(self) -> str:
        """How reliable the figure of all runs is, in words."""
        if self.from_here_up >= 0.9:
            return "close"
        return "partly seen" if self.from_here_up >= 0.3 else "upper bound"


def runs_of(rounds: Iterable[tuple[int, int]]) -> list[int]:
    """Return the runs, in tokens, of a request's (steps, accepted drafts); the last may be incomplete.

    A round of 0 steps drafted nothing: it ends a run and is left out.
    """
    runs, current = [], 0
    for steps, accepted in rounds:
        current += accepted + 1 if steps else 0
        if current and accepted == steps and steps:
            continue
        if current:
            runs.append(current)
        current = 0
    return [*runs, current] if current else runs


def texts_of(rounds: Rounds) -> Texts:
    """Return the requests as texts, without the tokens of rounds without drafts.

    Raises:
        SimulationError: nothing was drafted.
    """
    lengths, accepted = [], bytearray()
    for stretches in rounds.requests.values():
        before = len(accepted)
        for run in (run for stretch in stretches for run in runs_of(stretch)):
            accepted.extend(min(left, MAX_STEPS) for left in range(run - 1, -1, -1))
        if len(accepted) > before:
            lengths.append(len(accepted) - before)
    if not lengths:
        raise SimulationError("--trace: every round ran at 0 steps; expected some that drafted")
    ends = np.array(list(accumulate(lengths)), dtype=np.int64)
    return Texts(bytes(accepted), ends - np.array(lengths), ends, np.zeros(len(lengths), dtype=np.int64), (NAME,))


def seen(rounds: Rounds, texts: Texts, ladder: Sequence[int]) -> list[Seen]:
    """Return what is known about each of *ladder*."""
    ran: Counter[int] = Counter()
    tokens: Counter[int] = Counter()
    for steps, accepted in (entry for found in rounds.requests.values() for part in found for entry in part):
        ran[steps] += 1
        tokens[steps] += accepted + 1
    drafted = sum(count for steps, count in tokens.items() if steps)
    return [
        Seen(
            steps,
            ran[steps],
            tokens[steps] / ran[steps] if ran[steps] else None,
            len(texts.accepted) / int(texts.walk(texts.begin, texts.end, steps)[0].sum()),
            sum(count for other, count in tokens.items() if other >= max(steps, 1)) / drafted,
        )
        for steps in ladder
    ]


def batches(rounds: Rounds, most: int) -> list[int]:
    """Return the batch sizes that a tenth, half and nine tenths of the rounds did not exceed, at most *most*."""
    every = np.repeat(sorted(rounds.batches), [rounds.batches[size] for size in sorted(rounds.batches)])
    found = np.quantile(every, (0.1, 0.5, 0.9), method="inverted_cdf")
    return sorted({min(int(size), most) for size in found})
