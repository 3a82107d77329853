"""Reads the rounds that a server wrote down; see `sglang_adaptive.runtime.round_trace` for the format."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from sglang_adaptive.lab.simulate.cost import SimulationError
from sglang_adaptive.lookups.tally import MATCHES, Tally
from sglang_adaptive.policy.options import MAX_STEPS
from sglang_adaptive.runtime.round_trace import DIGITS, FORMAT, LOOKED_UP, LOST, VERSION, WHO

VERSIONS = (1, VERSION)
"""Versions of the format that are read; the first had no lookups."""
_VALUE = {digit: value for value, digit in enumerate(DIGITS)}


@dataclass(eq=False)
class Rounds:
    """What a server saw: every request's rounds, and how many requests each round had."""

    requests: dict[str, list[list[tuple[int, int]]]] = field(default_factory=dict)
    """By request, in the order in which they came: stretches of (steps, accepted drafts) without a gap."""
    batches: Counter[int] = field(default_factory=Counter)
    """Rounds by their number of requests."""
    steps: Counter[int] = field(default_factory=Counter)
    """Rounds by their steps."""
    lost: int = 0
    """Rounds that the server could not write down."""
    lookups: Tally = field(default_factory=Tally)
    """What lookups would have got accepted in its finished requests."""

    @property
    def count(self) -> int:
        """Rounds in all."""
        return self.steps.total()


def read_rounds(file: Path) -> Rounds:
    """Return the rounds in *file*, those of ``FILE.1`` first where there is one.

    The last line may be cut short, as a killed server leaves it.

    Raises:
        SimulationError: a file cannot be read, or is no trace of rounds; one line, with file, line and value.
    """
    older = file.with_name(f"{file.name}.1")
    found = Rounds()
    for part in (older, file) if older.exists() else (file,):
        _Reader(part, found).read()
    if not found.count:
        raise SimulationError(f"--trace {file}: no round in it; expected the rounds of a server that had requests")
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
        if not isinstance(about, dict) or about.get("format") != FORMAT or about.get("version") not in VERSIONS:
            expected = f'"format": "{FORMAT}", "version": {" or ".join(map(str, VERSIONS))}'
            raise SimulationError(f"--trace {self._file}: line 1: {first[:60]!r}; expected {expected}")
        for number, line in enumerate(lines, 2):
            if not self._take(*line.split(" ")):
                expected = "requests after @, lookups after ?, or steps and one digit a request"
                raise SimulationError(f"--trace {self._file}: line {number}: {line[:60]!r}; expected {expected}")

    def _lines(self) -> Iterator[str]:
        try:
            text = self._file.read_text(encoding="ascii")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not a text of rounds"
            raise SimulationError(f"--trace {self._file}: cannot be read ({reason})") from error
        yield from text[: text.rfind("\n") + 1].splitlines()

    def _take(self, first: str, *rest: str) -> bool:
        """Take in the words of a line; return whether it is well formed."""
        if first == WHO:
            self._who = list(rest)
            return bool(rest)
        if first == LOOKED_UP:
            return self._look_up(*rest)
        if len(rest) != 1:
            return False
        if first == LOST:
            return self._lose(rest[0])
        steps, counts = first, rest[0]
        if not steps.isdecimal() or int(steps) > MAX_STEPS or len(counts) != len(self._who):
            return False
        return self._round(int(steps), counts)

    def _lose(self, rounds: str) -> bool:
        if not rounds.isdecimal():
            return False
        self._found.lost += int(rounds)
        for stretches in self._found.requests.values():
            if stretches[-1]:
                stretches.append([])
        return True

    def _look_up(self, in_runs: str = "", *rows: str) -> bool:
        parts = [row.split(":") for row in rows]
        if any(len(part) != 3 for part in parts) or not all(map(str.isdecimal, [in_runs, *chain(*parts)])):
            return False
        found = {int(match): (int(rounds), int(tokens)) for match, rounds, tokens in parts}
        if not found or not found.keys() <= set(MATCHES):
            return False
        by_match = [found.get(match, (0, 0)) for match in MATCHES]
        rounds, tokens = (tuple(column) for column in zip(*by_match, strict=True))
        self._found.lookups += Tally(1, rounds, tokens, int(in_runs))
        return True

    def _round(self, steps: int, digits: str) -> bool:
        counts = [_VALUE.get(digit, MAX_STEPS + 1) for digit in digits]
        if max(counts) > steps:
            return False
        for request, count in zip(self._who, counts, strict=True):
            self._found.requests.setdefault(request, [[]])[-1].append((steps, count))
        self._found.batches[len(counts)] += 1
        self._found.steps[steps] += 1
        return True
