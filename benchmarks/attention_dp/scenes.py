"""Which requests come to which rank, and when."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from sglang_adaptive.simulate.real.texts import Texts

USUAL, BUSIEST = 16, 64
"""Requests of a rank where all are alike, and the most that one decodes at a time; profiles end there."""
SKEW = 1.2
"""Exponent of the power law by which ranks are busy: of 8, the first has 64 requests, the last 5."""
OPEN_LOAD = 8.0
"""Requests that a rank decodes on average where they come by themselves."""
TOKENS_A_ROUND = 2.3
SPELLS = 6
"""Parts of a run in which a rank is busy or idle, in "bursts"."""
TIDES = "all ranks between 1 and 64 together"
EASY, HARD = "math_reasoning", "summarization"
"""The kinds of text with most and fewest tokens a round."""


@dataclass(frozen=True)
class Scene:
    """What comes to the ranks."""

    name: str
    clients: Sequence[int]
    """By rank, who ask again as soon as they are answered; zeros where requests come by themselves."""
    kinds: Sequence[int | None]
    """By rank, index of the kind of its texts; None for all."""
    busy: Sequence[Sequence[float]] | None = None
    """By rank and spell, the share of its clients who ask; None for all of them all the time."""
    shares: Sequence[float] | None = None
    """By rank, the share of the requests that come by themselves; None for none."""


def scenes(ranks: int, texts: Texts, seed: int) -> Iterator[Scene]:
    """Yield every scene for so many ranks."""
    everything: list[int | None] = [None] * ranks
    by_rank = [rank % len(texts.kinds) for rank in range(ranks)]
    even, skewed = [USUAL] * ranks, [max(1, round(BUSIEST / (1 + rank * 8 / ranks) ** SKEW)) for rank in range(ranks)]
    easy, hard = texts.kinds.index(EASY), texts.kinds.index(HARD)
    first = ranks // 4
    yield Scene("balanced", even, everything)
    yield Scene("balanced, a kind of text each", even, by_rank)
    yield Scene("skewed", skewed, everything)
    yield Scene("skewed, hard text on the busy quarter", skewed, [hard] * first + [easy] * (ranks - first))
    yield Scene("skewed, easy text on the busy quarter", skewed, [easy] * first + [hard] * (ranks - first))
    yield Scene("one busy, the others with 4", [BUSIEST] + [4] * (ranks - 1), everything)
    yield Scene("half idle", [USUAL if rank % 2 else 0 for rank in range(ranks)], everything)
    draw = np.random.default_rng([seed, ranks])
    spells = (draw.random((ranks, SPELLS)) < 0.5).astype(float)
    yield Scene("bursts", [2 * USUAL] * ranks, by_rank, busy=spells.tolist())
    tide = [1.0 if spell % 2 else 1.0 / BUSIEST for spell in range(SPELLS)]
    yield Scene(TIDES, [BUSIEST] * ranks, everything, busy=[tide] * ranks)
    none = [0] * ranks
    yield Scene("Poisson", none, everything, shares=[1.0 / ranks] * ranks)
    yield Scene("Poisson, skewed", none, by_rank, shares=(np.array(skewed) / sum(skewed)).tolist())


def arrivals(scene: Scene, texts: Texts, usual_round: float, horizon: float, seed: int) -> list[list[float]]:
    """Return by rank the seconds at which requests come by themselves, ascending."""
    draw = np.random.default_rng([seed, 1, *scene.name.encode()])
    ranks = len(scene.clients)
    found: list[list[float]] = []
    for share in scene.shares or [0.0] * ranks:
        rate = share * ranks * OPEN_LOAD / (texts.mean_length / TOKENS_A_ROUND * usual_round)
        many = draw.poisson(rate * horizon)
        found.append(sorted(draw.uniform(0.0, horizon, many).tolist()))
    return found
