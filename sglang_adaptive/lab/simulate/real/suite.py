"""The real suite: every scene, batch size and cost profile."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sglang_adaptive.lab.simulate.contenders import Contender
from sglang_adaptive.lab.simulate.cost import FloatArray, RoundCost
from sglang_adaptive.lab.simulate.ours import profile_of
from sglang_adaptive.lab.simulate.real.cell import Cell, Place, play_cell
from sglang_adaptive.lab.simulate.real.scenes import Work, arrivals, scenes
from sglang_adaptive.lab.simulate.real.serve import FixedSteps
from sglang_adaptive.lab.simulate.real.texts import Texts
from sglang_adaptive.lab.simulate.trace import clock_factors
from sglang_adaptive.policy.throughput.base_cost import BaseCost
from sglang_adaptive.policy.throughput.lookups import KINDS, TRACKING_SECONDS

BATCHES = (1, 4, 16, 64)
DEFAULT_ROUNDS = 2000
LONGER = {1: 3.0, 4: 1.5}
"""Factor on the rounds of small batches: they are quick to play, and serve few requests in the same rounds."""
LOADS = {"arrivals 25%": 0.25, "arrivals 75%": 0.75}
"""Poisson arrivals, as a share of what the best single depth serves in a closed loop of the largest batch."""
NOISE_ROUNDS = 1 << 14


@dataclass(frozen=True)
class Setting:
    """What is played; *texts* and *costs* by name."""

    texts: Mapping[str, Texts]
    costs: Mapping[str, RoundCost]
    batches: Sequence[int] = BATCHES
    rounds: int = DEFAULT_ROUNDS
    seed: int = 0
    with_arrivals: bool = True
    tracking: float = TRACKING_SECONDS
    """Seconds that tracking texts for lookups adds to a round."""

    @property
    def steps(self) -> list[int]:
        """Every depth of every profile."""
        return sorted({steps for cost in self.costs.values() for steps in cost.steps})

    @property
    def cells(self) -> int:
        """How many cells there are."""
        kinds = sum(len(texts.kinds) + 4 if len(texts.kinds) > 1 else 2 for texts in self.texts.values())
        return len(self.costs) * (kinds * len(self.batches) + len(self.texts) * len(LOADS) * self.with_arrivals)


def play(setting: Setting, contenders: Sequence[Contender], oracles: Sequence[str] = ()) -> list[Cell]:
    """Play every cell, with a bar on a terminal."""
    from tqdm import tqdm  # type: ignore[import-untyped]

    every = tqdm(places(setting), total=setting.cells, unit=" cells", leave=False, disable=None)
    return [play_cell(place, names, contenders, oracles) for names, place in every]


def places(setting: Setting) -> Iterator[tuple[tuple[str, str, str], Place]]:
    """Yield each cell's names (texts, load, profile) and what its contenders share."""
    clock = clock_factors(NOISE_ROUNDS, np.random.default_rng([setting.seed, 1]))
    largest = max(setting.batches)
    tables = {name: round_times(cost, largest) for name, cost in setting.costs.items()}
    for texts_name, texts in setting.texts.items():
        for batch in setting.batches:
            rounds = int(setting.rounds * LONGER.get(batch, 1.0))
            for work in scenes(texts, batch, rounds, setting.seed):
                fixed = {steps: FixedSteps(work, steps) for steps in setting.steps}
                for name, cost in setting.costs.items():
                    runs = [fixed[steps] for steps in cost.steps]
                    yield (texts_name, str(batch), name), Place(work, cost, tables[name], clock, runs, setting.tracking)
        for name, cost in setting.costs.items() if setting.with_arrivals else ():
            for load, share in LOADS.items():
                work = _arriving(texts, setting, tables[name], cost, share)
                yield (texts_name, load, name), Place(work, cost, tables[name], clock, tracking=setting.tracking)


def round_times(cost: RoundCost, largest: int) -> FloatArray:
    """Return seconds by batch size and steps; at other numbers of drafts, those of lookup rounds.

    Lookup rounds are not profiled: their times come from the cost model (``policy.throughput.cost``).
    """
    table = cost.table(largest)
    found = np.full((len(table), max(table.shape[1], *KINDS) + 1), np.nan)
    found[:, : table.shape[1]] = table
    base = BaseCost(cost.steps, profile_of(cost))
    for drafts, sizes in KINDS.items():
        for size in sizes if drafts not in cost.steps else ():
            if size <= largest:
                found[size, drafts] = base.lookup_seconds(size, drafts)
    return found


def _arriving(texts: Texts, setting: Setting, table: FloatArray, cost: RoundCost, share: float) -> Work:
    """Return Poisson arrivals that use *share* of what the best single depth can serve."""
    most = max(setting.batches)
    tokens = int((texts.end - texts.begin).sum())
    paces = {steps: tokens / int(texts.walk(texts.begin, texts.end, steps)[0].sum()) for steps in cost.steps}
    capacity = max(most * pace / float(table[most, steps]) for steps, pace in paces.items())
    rate = share * capacity / texts.mean_length
    return arrivals(texts, rate, setting.rounds, most, setting.seed)
