"""The requests of recorded traces, shipped or an operator's own, and their rounds at one fixed number of steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sglang_adaptive.lab.simulate.cost import FloatArray, SimulationError
from sglang_adaptive.lab.simulate.trace import IntArray
from sglang_adaptive.lab.traces import Trace, TraceError, read


@dataclass(frozen=True, eq=False)
class Texts:
    """Recorded outputs, one after another; a request is the positions ``begin`` to ``end`` of ``accepted``.

    ``accepted[t]`` is ``L(t)``: the accepted drafts of a chain starting at output position t. A round of s steps
    accepts ``min(L(t), s)`` drafts and the next one starts that many tokens plus one further on.
    """

    accepted: bytes
    """One number per position; Python reads single items from it faster than from an array."""
    begin: IntArray
    """First position of each request, shape ``(requests,)``."""
    end: IntArray
    """One past its last position."""
    kind: IntArray
    """Index of its kind of text in ``kinds``."""
    kinds: tuple[str, ...]
    match: bytes | None = None
    """Tokens that agree before the looked-up drafts at each position; None, like ``looked_up``, if unknown."""
    looked_up: bytes | None = None
    """Number of these drafts that are right."""
    _to_go: dict[int, IntArray] = field(default_factory=dict)

    @classmethod
    def of(cls, trace: Trace) -> Texts:
        """Return the requests of *trace*."""
        kinds = tuple(dict.fromkeys(trace.category))
        number = {kind: index for index, kind in enumerate(kinds)}
        kind = np.array([number[category] for category in trace.category], dtype=np.int64)
        match, right = (None if found is None else found.tobytes() for found in (trace.match, trace.looked_up))
        return cls(trace.accepted.tobytes(), trace.starts, trace.starts + trace.length, kind, kinds, match, right)

    @cached_property
    def levels(self) -> NDArray[np.uint8]:
        """``accepted`` as an array."""
        return np.frombuffer(self.accepted, dtype=np.uint8)

    @property
    def mean_length(self) -> float:
        """Mean output tokens of a request."""
        return float((self.end - self.begin).mean())

    def walk(self, begin: IntArray, end: IntArray, steps: int) -> IntArray:
        """Play requests at fixed *steps*, all in parallel; return the rounds that each takes."""
        at, rounds = begin.copy(), np.zeros(len(begin), dtype=np.int64)
        alive = np.flatnonzero(at < end)
        while alive.size:
            at[alive] += np.minimum(self.levels[at[alive]], steps) + 1
            rounds[alive] += 1
            alive = alive[at[alive] < end[alive]]
        return rounds

    def rounds_to_go(self, steps: int) -> IntArray:
        """Return for each position how many rounds of *steps* a request takes from there to its end."""
        if steps not in self._to_go:
            rounds = np.zeros(len(self.accepted) + 1, dtype=np.int64)
            lengths = self.end - self.begin
            for left in range(1, int(lengths.max()) + 1):  # from the ends backward, all requests in parallel
                end = self.end[lengths >= left]
                at = end - left
                reached = np.minimum(at + np.minimum(self.levels[at], steps) + 1, end)
                rounds[at] = 1 + np.where(reached < end, rounds[reached], 0)
            self._to_go[steps] = rounds[:-1]
        return self._to_go[steps]

    def progress(self, ladder: Sequence[int], steps: int) -> FloatArray:
        """Return the value of a round at each position and each of *ladder*, in rounds of *steps* that it saves.

        Shape ``(positions, len(ladder))``. The value is the round's progress over the pace of the request's own text.
        """
        to_go = self.rounds_to_go(steps)
        at = np.arange(len(to_go))
        end = np.repeat(self.end, self.end - self.begin)
        columns = []
        for other in ladder:
            reached = np.minimum(at + np.minimum(self.levels, other) + 1, end)
            left = np.where(reached < end, to_go[np.minimum(reached, len(to_go) - 1)], 0)
            columns.append(to_go - left)
        return np.stack(columns, axis=1).astype(float)


REPEATED = 0.02
"""Share of the positions above which exact repetitions warrant a second play without them."""
_PACKAGE = Path(__file__).resolve().parents[3]
CUT = ", repetitions cut"
"""Suffix of the name of a recording played a second time, each request up to its first exact repetition."""


def shipped() -> list[Path]:
    """Return a checkout's recordings; a wheel has none."""
    return sorted((_PACKAGE.parent / "benchmarks" / "traces").glob("*.npz"))


def load_texts(files: Sequence[str]) -> dict[str, Texts]:
    """Return the texts of *files* by name; without files, those of the shipped recordings.

    A recording with many exact repetitions is played twice: whole, and with the repetitions cut.

    Raises:
        SimulationError: a file is not a recording, two have the same name, or none is shipped.
    """
    paths = [Path(file) for file in files] or shipped()
    if not paths:
        raise SimulationError("--texts: this installation has no recordings; expected a file")
    found: dict[str, Texts] = {}
    for path in paths:
        try:
            trace = read(path)
        except TraceError as error:
            raise SimulationError(f"--texts {error}") from error
        if path.stem in found:
            raise SimulationError(f"--texts {path}: the name {path.stem} is already taken; expected different names")
        found[path.stem] = Texts.of(trace)
        if trace.loop_start.sum() < (1.0 - REPEATED) * trace.length.sum():
            found[path.stem + CUT] = Texts.of(trace.without_repetitions())
    return found
