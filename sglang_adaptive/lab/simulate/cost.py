"""The true cost of a round, from a profile, and distorted copies of it to give to a policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sglang_adaptive.policy.profile import ProfileError, loads_profile, shipped_config

FloatArray = NDArray[np.float64]


class SimulationError(ValueError):
    """Bad input to the simulator, or a policy that broke its contract; the message is one line."""


@dataclass(frozen=True, eq=False)
class RoundCost:
    """Seconds of one decode round by batch size and draft steps, measured at some cells.

    ``seconds[i, j]`` belongs to ``batches[i]`` requests and ``steps[j]`` draft steps. Between measured cells
    the cost is linear in both; outside them it is that of the nearest edge.
    """

    batches: tuple[int, ...]
    steps: tuple[int, ...]
    seconds: FloatArray

    @classmethod
    def from_cells(cls, cells: Mapping[tuple[int, int], float], source: str = "profile") -> RoundCost:
        """Build from ``{(batch, steps): seconds}``: a full grid of positive times that has zero steps.

        Raises:
            SimulationError: it is not; the message begins with *source*.
        """
        if not cells:
            raise SimulationError(f"{source}: no cells; expected a time for every batch size and depth")
        batches = tuple(sorted({batch for batch, _ in cells}))
        steps = tuple(sorted({step for _, step in cells}))
        missing = [(b, s) for b in batches for s in (0, *steps) if (b, s) not in cells]
        if missing:
            batch, step = missing[0]
            raise SimulationError(
                f"{source}: batch_size {batch}, steps {step} missing; expected a full grid from 0 steps"
            )
        if steps == (0,):
            raise SimulationError(f"{source}: no steps but 0; expected a time of at least one depth above it")
        seconds = np.array([[cells[b, s] for s in steps] for b in batches], dtype=float)
        if not np.all(np.isfinite(seconds) & (seconds > 0)):
            raise SimulationError(f"{source}: a time is not positive; expected seconds above 0")
        return cls(batches, steps, seconds)

    def cells(self) -> dict[tuple[int, int], float]:
        """Return ``{(batch, steps): seconds}``."""
        grid = ((i, j) for i in range(len(self.batches)) for j in range(len(self.steps)))
        return {(self.batches[i], self.steps[j]): float(self.seconds[i, j]) for i, j in grid}

    def table(self, max_batch: int) -> FloatArray:
        """Return seconds for batch ``0..max_batch`` (row 0 unused) by depth ``0..steps[-1]``."""
        depths = np.arange(self.steps[-1] + 1)
        by_depth = np.stack([np.interp(depths, self.steps, row) for row in self.seconds])
        wanted = np.arange(max_batch + 1)
        return np.stack([np.interp(wanted, self.batches, column) for column in by_depth.T], axis=1)

    def mistaken(self, error: float, rng: np.random.Generator) -> RoundCost:
        """Return a copy in which every cell is off by exactly *error*, up or down at random."""
        factors = 1.0 + error * rng.choice([-1.0, 1.0], size=self.seconds.shape)
        return RoundCost(self.batches, self.steps, self.seconds * factors)


SHIPPED = "h200-llama31-8b-eagle3-fa3"
"""Measured on one H200 with an 8B target; see the profile's own description."""


def load_cost(path: str | None) -> tuple[str, RoundCost]:
    """Return name and cost of the profile in *path*, or of the shipped one.

    Raises:
        SimulationError: the file cannot be read, is not a profile, or lacks cells of a full grid.
    """
    file = shipped_config(f"profiles/{SHIPPED}.json") if path is None else Path(path)
    try:
        profile = loads_profile(file.read_text(encoding="utf-8"), file.name)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise SimulationError(f"--profile {path or file.name}: cannot be read ({reason})") from error
    except ProfileError as error:
        raise SimulationError(f"--profile {error}") from error
    cells = {(cell.batch_size, cell.steps): cell.seconds for cell in profile.cells}
    return file.stem, RoundCost.from_cells(cells, f"--profile {file.name}")
