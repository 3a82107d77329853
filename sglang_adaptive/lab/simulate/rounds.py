"""The rounds that a server recorded, and the noise of their times.

`sglang_adaptive.runtime.round_trace` has the format.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import numpy as np

from sglang_adaptive.lab.simulate.cost import FloatArray, SimulationError
from sglang_adaptive.policy.options import MAX_STEPS
from sglang_adaptive.runtime.round_trace import DIGITS, EXTENDED, FORMAT, HELD, LOST, UNTIMED, VERSION, WHO

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
    lost: int = 0
    """Rounds that the server could not record."""

    @property
    def count(self) -> int:
        """Total rounds."""
        return len(self.stream)

    def add(self, one: Recorded) -> None:
        """Add a round after the others."""
        self.stream.append(one)
        for request, count in zip(one.requests, one.counts, strict=True):
            self.requests.setdefault(request, [[]])[-1].append((one.steps, count))
        self.batches[len(one.counts)] += 1


def read_rounds(file: Path) -> Rounds:
    """Return the rounds in *file*, which may be gzipped (``.gz``), after those of ``FILE.1`` if that exists.

    The last line may be incomplete, as a killed server leaves it.

    Raises:
        SimulationError: a file cannot be read, or is not a trace of rounds; one line, with file, line and value.
    """
    older = file.with_name(f"{file.name}.1")
    found = Rounds()
    for part in (older, file) if older.exists() else (file,):
        _read(part, found)
    if not found.count:
        raise SimulationError(f"--trace {file}: contains no rounds; expected the rounds of a server that had requests")
    return found


def _read(file: Path, found: Rounds) -> None:
    lines = _lines(file)
    first = next(lines, "")
    try:
        about = json.loads(first)
    except ValueError:
        about = None
    if not isinstance(about, dict) or about.get("format") != FORMAT or about.get("version") != VERSION:
        expected = f'"format": "{FORMAT}", "version": {VERSION}'
        raise SimulationError(f"--trace {file}: line 1: {first[:60]!r}; expected {expected}")
    who: list[str] = []
    for number, line in enumerate(lines, 2):
        kind, *rest = line.split(" ")
        if kind == WHO and rest:
            who = rest
        elif kind == LOST and len(rest) == 1 and rest[0].isdecimal():
            found.lost += int(rest[0])
            for stretches in found.requests.values():
                if stretches[-1]:
                    stretches.append([])
        elif (one := _round(line, who)) is not None:
            found.add(one)
        else:
            expected = "requests after @, or steps, one digit a request and microseconds"
            raise SimulationError(f"--trace {file}: line {number}: {line[:60]!r}; expected {expected}")


def _lines(file: Path) -> Iterator[str]:
    try:
        content = file.read_bytes()
        text = (gzip.decompress(content) if file.suffix == ".gz" else content).decode("ascii")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or "not a round trace"
        raise SimulationError(f"--trace {file}: cannot be read ({reason})") from error
    yield from text[: text.rfind("\n") + 1].splitlines()


def _round(line: str, who: Sequence[str]) -> Recorded | None:
    found = _ROUND.fullmatch(line)
    if found is None:
        return None
    steps, counts = int(found[1]), [int(digit, len(DIGITS)) for digit in found[2]]
    if steps > MAX_STEPS or len(counts) != len(who) or max(counts) > steps:
        return None
    shadow = [int(digit) for digit in found[7] or ""]
    timed, held, extended = not found[3], bool(found[5]), bool(steps or found[6])
    return Recorded(who, steps, counts, 1e-6 * int(found[4]), timed, held, extended, shadow)


# The noise of round times as servers recorded it.
#
# A disturbance is a reading over the mean of its cell, which is the batch size, the steps and, at zero steps, the
# rounds since the draft extend. The mean and not the median: what a late arrival adds to one reading, the next one
# lacks, so the machine's own time is the mean, while the median of a cell with two modes is either one. Disturbances
# stay in the order of the rounds, so late arrivals with the short readings after them, bursts and spells are drawn as
# they were.


NOISE = Path(__file__).resolve().parents[3] / "benchmarks" / "noise"
"""The folder of recordings, only in a checkout. A file is called KIND-MODEL.rounds.gz."""
KINDS: Mapping[str, str] = {
    "gpu": "rounds paced by the GPU",
    "host": "rounds paced by the host",
    "busy": "rounds paced by a busy host",
}
FEWEST = 8
"""Cells with fewer readings are left out: their mean is a guess."""


def factors(kind: str, rounds: int, rng: np.random.Generator) -> FloatArray:
    """Return the factor by which the reading of each of *rounds* differs from the round's time.

    They are one stretch of one recording of *kind*, from a random round on, repeated as needed.

    Raises:
        SimulationError: this installation has no recording of *kind*.
    """
    found = recordings(kind)
    one = found[rng.integers(len(found))]
    return np.take(one, rng.integers(len(one)) + np.arange(rounds), mode="wrap")


@cache
def recordings(kind: str) -> tuple[FloatArray, ...]:
    """Return the disturbances of each recording of *kind*.

    Raises:
        SimulationError: there is none.
    """
    files = sorted(NOISE.glob(f"{kind}-*.rounds.gz"))
    if not files:
        raise SimulationError(f"noise {kind}: this installation has no recordings; expected a checkout")
    return tuple(disturbances(read_rounds(file)) for file in files)


def disturbances(rounds: Rounds) -> FloatArray:
    """Return each timed round's reading over the mean of its cell, in order."""
    readings: list[tuple[tuple[int, int, int], float]] = []
    cells = defaultdict(list)
    since = 0
    for one in rounds.stream:
        cell = len(one.requests), one.steps, since
        since = 0 if one.extended else since + 1
        if one.timed:
            readings.append((cell, one.since_last))
            cells[cell].append(one.since_last)
    means = {cell: fmean(found) for cell, found in cells.items() if len(found) >= FEWEST}
    return np.array([seconds / means[cell] for cell, seconds in readings if cell in means])
