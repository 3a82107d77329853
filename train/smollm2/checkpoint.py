"""Where a training stands: enough to go on as if it had not been cut off."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import torch

from train.smollm2.model import Draft


@dataclass
class Place:
    """Batches of *epoch* that are done, steps and answer tokens in all, and the seconds they took."""

    epoch: int = 0
    batch: int = 0
    step: int = 0
    tokens: int = 0
    seconds: float = 0.0


def save(path: Path, place: Place, draft: Draft, optimiser: torch.optim.Optimizer) -> None:
    """Write *path*, whole or not at all."""
    partial = path.with_name(path.name + ".part")
    torch.save({"place": vars(place), "draft": draft.state_dict(), "optimiser": optimiser.state_dict()}, partial)
    os.replace(partial, path)


def load(path: Path, draft: Draft, optimiser: torch.optim.Optimizer) -> Place:
    """Fill *draft* and *optimiser* from *path* and return the place; a new one where there is no such file."""
    if not path.is_file():
        return Place()
    kept = torch.load(path, map_location="cpu", weights_only=True)
    draft.load_state_dict(kept["draft"])
    optimiser.load_state_dict(kept["optimiser"])
    return Place(**kept["place"])
