"""What a training draws from: shares of the families."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from train.data import Document, document


@dataclass(frozen=True)
class Share:
    """How much of a corpus a family is, and whether its entries follow the rule there."""

    family: str
    weight: float
    ruled: bool = True


def draw(shares: Sequence[Share], rng: random.Random, count: int, size: int) -> list[tuple[Share, Document]]:
    """Draw *count* training documents of *size* bytes."""
    picked = rng.choices(shares, [share.weight for share in shares], k=count)
    return [(share, document(share.family, rng, size, ruled=share.ruled)) for share in picked]
