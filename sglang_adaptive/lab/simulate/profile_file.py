"""The cost profile that a simulation takes for the truth."""

from __future__ import annotations

from pathlib import Path

from sglang_adaptive.lab.simulate.cost import RoundCost
from sglang_adaptive.lab.simulate.errors import SimulationError
from sglang_adaptive.policy.profile import ProfileError, loads_profile, shipped_config

SHIPPED = "h200-llama31-8b-eagle3-fa3"
"""Measured on one H200 with an 8B target; see the profile's own words."""


def load_cost(path: str | None) -> tuple[str, RoundCost]:
    """Return name and cost of the profile in *path*, or of the shipped one.

    Raises:
        SimulationError: the file cannot be read, is no profile, or lacks cells of a full grid.
    """
    file = shipped_config(f"profiles/{SHIPPED}.json") if path is None else Path(path)
    try:
        profile = loads_profile(file.read_text(encoding="utf-8"), file.name)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise SimulationError(f"--profile {path or file.name}: cannot be read ({reason})") from error
    except ProfileError as error:
        raise SimulationError(f"--profile {error}") from error
    cells = {(cell.batch_size, cell.steps): cell.seconds for cell in profile.cells if cell.budget is None}
    return file.stem, RoundCost.from_cells(cells, f"--profile {file.name}")
