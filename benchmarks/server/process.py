"""The declared acceptance process, and what the server decoded under it: one small file that both sides map.

The benchmark writes the process, the scheduler reads it before every round. The scheduler counts its decode rounds
into the same file, so that a figure is of whole rounds, timed where they happen, and not of HTTP answers.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from sglang_adaptive.simulate.acceptance import expected_tokens, hazards

DEEPEST = 32
"""Deepest draft that a configuration may name."""

RING = 8192
"""Round times kept, the latest ones."""

LAYOUT = np.dtype(
    [
        ("p", "f8"),
        ("decay", "f8"),
        ("full_batch", "f8"),
        ("least_batch", "f8"),
        ("other_steps", "f8"),
        ("sequence", "u8"),
        ("rounds", "f8"),
        ("requests", "f8"),
        ("tokens", "f8"),
        ("expected", "f8"),
        ("switches", "f8"),
        ("batch_size", "f8"),
        ("steady_rounds", "f8"),
        ("steady_seconds", "f8"),
        ("steady_tokens", "f8"),
        ("steady_expected", "f8"),
        ("busy_rounds", "f8"),
        ("busy_seconds", "f8"),
        ("busy_tokens", "f8"),
        ("busy_requests", "f8"),
        ("rounds_by_depth", "f8", DEEPEST + 1),
        ("ring", "f4", RING),
    ]
)
_COUNTED = LAYOUT.names[LAYOUT.names.index("rounds") : LAYOUT.names.index("rounds_by_depth")]  # type: ignore[index,union-attr]


@dataclass(frozen=True)
class Declared:
    """P(draft j accepted | draft j - 1 accepted) = min(1, p * decay ** (j - 1)), j from 1."""

    p: float
    decay: float = 1.0

    def expected(self, steps: int) -> float:
        """Return the tokens that a request is to get from a round of *steps* drafts, bonus token included."""
        return _expectations(self)[steps]


@lru_cache(maxsize=4096)
def _expectations(declared: Declared) -> tuple[float, ...]:
    return tuple(expected_tokens(hazards(declared.p, declared.decay, DEEPEST)).tolist())


@dataclass(frozen=True)
class Counted:
    """Decode rounds since the server started, or between two readings (see ``-``).

    ``expected`` is what the drafted rounds yield on average under the declared process: the tokens without the luck of
    the draw. The ``steady_`` ones are of rounds that followed another decode round, both at the batch size asked for;
    the ``busy_`` ones of rounds that followed another, both with at least the requests asked for.
    """

    rounds: float
    requests: float
    """Requests times rounds."""

    tokens: float
    expected: float
    switches: float
    """Rounds drafted at another depth than the round before."""

    batch_size: float
    """Of the latest round."""

    steady_rounds: float
    steady_seconds: float
    steady_tokens: float
    steady_expected: float
    busy_rounds: float
    busy_seconds: float
    busy_tokens: float
    busy_requests: float
    rounds_by_depth: tuple[float, ...]

    def __sub__(self, earlier: Counted) -> Counted:
        """Return what was counted since *earlier*; the batch size stays the latest."""
        own, before = vars(self), vars(earlier)
        spent = {name: own[name] - before[name] for name in own if name not in ("batch_size", "rounds_by_depth")}
        depths = tuple(a - b for a, b in zip(self.rounds_by_depth, earlier.rounds_by_depth, strict=True))
        return Counted(**spent, batch_size=self.batch_size, rounds_by_depth=depths)

    def depths(self) -> dict[str, int]:
        """Return the rounds by depth, depths that were not used left out; keys are strings, for JSON."""
        return {str(steps): int(rounds) for steps, rounds in enumerate(self.rounds_by_depth) if rounds}

    @property
    def commonest_depth(self) -> int | None:
        """The depth of most rounds, None without rounds."""
        most = max(self.rounds_by_depth)
        return self.rounds_by_depth.index(most) if most else None


class Process:
    """The mapped file. Raises ValueError when *path* is not such a file."""

    def __init__(self, path: str | Path, create: bool = False) -> None:
        if create:
            np.zeros(1, LAYOUT).tofile(path)
        if Path(path).stat().st_size != LAYOUT.itemsize:
            raise ValueError(f"{path}: not an acceptance file of this version; expected {LAYOUT.itemsize} bytes")
        self.path = Path(path)
        self._cell = np.memmap(path, dtype=LAYOUT, mode="r+", shape=(1,))[0]

    # -- the benchmark's side -----------------------------------------------------------------------------------

    @property
    def declared(self) -> Declared:
        """The process of every request that declares none of its own; seen from the next round on."""
        return Declared(float(self._cell["p"]), float(self._cell["decay"]))

    @declared.setter
    def declared(self, value: Declared) -> None:
        self._cell["p"], self._cell["decay"] = value.p, value.decay

    @property
    def full_batch(self) -> int:
        """Batch size whose rounds are counted as steady."""
        return int(self._cell["full_batch"])

    @full_batch.setter
    def full_batch(self, requests: int) -> None:
        self._cell["full_batch"] = requests

    @property
    def least_batch(self) -> int:
        """Requests from which on a round counts as busy; 0 counts none."""
        return int(self._cell["least_batch"])

    @least_batch.setter
    def least_batch(self, requests: int) -> None:
        self._cell["least_batch"] = requests

    @property
    def other_steps(self) -> int | None:
        """Steps of every second round, where steps are held; None holds them in all rounds."""
        steps = int(self._cell["other_steps"])
        return steps - 1 if steps else None

    @other_steps.setter
    def other_steps(self, steps: int | None) -> None:
        self._cell["other_steps"] = 0 if steps is None else steps + 1

    def read(self) -> Counted:
        """Return the counters of one moment between two rounds."""
        while True:
            before = int(self._cell["sequence"])
            values = {name: float(self._cell[name]) for name in _COUNTED}
            depths = tuple(map(float, self._cell["rounds_by_depth"]))
            if before == int(self._cell["sequence"]) and not before % 2:
                return Counted(**values, rounds_by_depth=depths)
            time.sleep(0)

    def round_seconds(self, since: Counted) -> list[float]:
        """Return the times of the steady rounds after *since*, at most the latest RING of them."""
        end = int(self.read().steady_rounds)
        begin = max(int(since.steady_rounds), end - RING)
        return [float(self._cell["ring"][index % RING]) for index in range(begin, end)]

    # -- the scheduler's side -----------------------------------------------------------------------------------

    def count(self, steps: int, requests: int, tokens: int, expected: float, switched: bool) -> None:
        """Add one round; between the two changes of ``sequence`` a reader waits."""
        cell = self._cell
        cell["rounds"] += 1
        cell["requests"] += requests
        cell["tokens"] += tokens
        cell["expected"] += expected
        cell["switches"] += switched
        cell["batch_size"] = requests
        cell["rounds_by_depth"][steps] += 1

    def count_steady(self, seconds: float, tokens: int, expected: float) -> None:
        """Add a round at the full batch that followed another one after *seconds*."""
        cell = self._cell
        cell["ring"][int(cell["steady_rounds"]) % RING] = seconds
        cell["steady_rounds"] += 1
        cell["steady_seconds"] += seconds
        cell["steady_tokens"] += tokens
        cell["steady_expected"] += expected

    def count_busy(self, seconds: float, requests: int, tokens: int) -> None:
        """Add a round of *requests* requests that followed another busy one after *seconds*."""
        cell = self._cell
        cell["busy_rounds"] += 1
        cell["busy_seconds"] += seconds
        cell["busy_tokens"] += tokens
        cell["busy_requests"] += requests

    def change(self) -> None:
        """Mark the begin, and then the end, of a round's changes."""
        self._cell["sequence"] += 1


def own(parameters: dict[str, object] | None) -> Declared | None:
    """Return the process that a request declares in SGLang's ``custom_params``, as {"acceptance": [p, decay]}."""
    declared = (parameters or {}).get(CUSTOM)
    if not isinstance(declared, Sequence):
        return None
    return Declared(*map(float, declared))


CUSTOM = "acceptance"
"""Key in a request's ``sampling_params.custom_params``."""

REPLAYED = "trace"
"""The same for a request whose acceptance was recorded: the number of its question in the server's trace."""


def replayed(parameters: dict[str, object] | None) -> int | None:
    """Return the question of the trace that a request names in ``custom_params``, as {"trace": 17}; None for none."""
    named = (parameters or {}).get(REPLAYED)
    return named if isinstance(named, int) else None
