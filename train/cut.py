"""The target's first layers as a separate model: a draft for STANDALONE speculation that needs no training.

The kept layers, the embedding, the last norm and the head are the target's, so it has the target's vocabulary and
guesses well where the first layers suffice. Its share of the target's time is about its share of the layers.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from train import checkpoint
from train.target import Target


def write(folder: Path, layers: int, whole: Path) -> Path:
    """Write the first *layers* layers of the target in *whole* to *folder*, and return *folder*."""
    target = checkpoint.load_target(whole)
    cut = Target(dataclasses.replace(target.size, layers=layers))
    weights = target.state_dict()
    cut.load_state_dict({name: weights[name] for name in cut.state_dict()})
    checkpoint.save(folder, cut)
    return folder
