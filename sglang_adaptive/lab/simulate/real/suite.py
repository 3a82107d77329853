"""``sglang-adaptive simulate --suite real``: every scene, batch size and cost profile."""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sglang_adaptive.lab.simulate import text
from sglang_adaptive.lab.simulate.contenders import LOOKUPS, Contender, chosen, profile_of
from sglang_adaptive.lab.simulate.cost import FloatArray, RoundCost, SimulationError, load_cost
from sglang_adaptive.lab.simulate.real.cell import Cell, Place, play_cell
from sglang_adaptive.lab.simulate.real.oracles import ORACLES
from sglang_adaptive.lab.simulate.real.scenes import Work, arrivals, scenes
from sglang_adaptive.lab.simulate.real.texts import Texts, load_texts, shipped
from sglang_adaptive.lab.simulate.report import FORMAT, Played, about
from sglang_adaptive.lab.simulate.trace import clock_factors
from sglang_adaptive.policy.profile import shipped_config
from sglang_adaptive.policy.throughput.base_cost import BaseCost
from sglang_adaptive.policy.throughput.lookups import KINDS, TRACKING_SECONDS

NAME = "real"
POLICIES = ("throughput", "ema", "ema-all")
"""Policies that play if none is named; every fixed depth plays anyway."""
DEFINITION = (
    "over_single = output tokens per second that requests see, divided by those at the best single depth of the same "
    "cell; switches = changes of steps per hour; slowest = mean seconds per token of the slowest tenth of the "
    "requests, divided by those at the best single depth. Round times are from a profile; acceptance is recorded."
)

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
                for name, cost in setting.costs.items():
                    yield (texts_name, str(batch), name), Place(work, cost, tables[name], clock, setting.tracking)
        for name, cost in setting.costs.items() if setting.with_arrivals else ():
            for load, share in LOADS.items():
                work = _arriving(texts, setting, tables[name], cost, share)
                yield (texts_name, load, name), Place(work, cost, tables[name], clock, setting.tracking)


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
    paces = {steps: tokens / int(texts.walk(texts.begin, texts.end, steps).sum()) for steps in cost.steps}
    capacity = max(most * pace / float(table[most, steps]) for steps, pace in paces.items())
    rate = share * capacity / texts.mean_length
    return arrivals(texts, rate, setting.rounds, most, setting.seed)


# The command.


def run(options: argparse.Namespace, words: list[str]) -> Played:
    """Play the suite."""
    texts, costs = load_texts(options.texts), load_costs(options.profile)
    setting = Setting(texts, costs, rounds=options.rounds or DEFAULT_ROUNDS, seed=options.seed)
    names, oracles = asked(options.policy, ORACLES)
    contenders, left_out = pick(names, setting)
    report = json_report(words, setting, options.texts, play(setting, contenders, oracles), left_out)
    return report, text.recorded(", ".join(texts), report)


def asked(policies: list[str], oracles: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the policies and the *oracles* that play if ``--policy`` names *policies*."""
    names = [name for name in policies if name not in ORACLES] if policies else list(POLICIES)
    return names, [name for name in oracles if name in policies or not policies]


def load_costs(path: str | None) -> dict[str, RoundCost]:
    """Return the cost profile in *path* by its name; without a path, every shipped one."""
    paths = [path] if path else sorted(map(str, shipped_config("profiles").glob("*.json")))
    return dict(load_cost(one) for one in paths)


def pick(names: list[str], setting: Setting) -> tuple[list[Contender], list[str]]:
    """Return the contenders called *names* that can run on every profile, and a sentence on each other one."""
    in_all = set.intersection(*(set(cost.steps) for cost in setting.costs.values()))
    if LOOKUPS in names and not all(texts.match for texts in setting.texts.values()):
        lacking = next(name for name, texts in setting.texts.items() if not texts.match)
        raise SimulationError(f"--policy {LOOKUPS}: {lacking} was recorded without lookups; expected other --texts")
    return chosen(names, tuple(setting.steps), in_all)


def json_report(
    words: list[str], setting: Setting, files: Sequence[str], cells: Sequence[Cell], left_out: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the whole report as JSON builtins; figures are rounded to 5 digits."""
    paths = [Path(file) for file in files] or shipped()
    source = {
        "seed": setting.seed,
        "rounds": setting.rounds,
        "batches": list(setting.batches),
        "profiles": list(setting.costs),
        "recordings_sha256": {path.name: hashlib.sha256(path.read_bytes()).hexdigest()[:16] for path in paths},
        "note": "Acceptance is replayed from recordings; round times come from the profiles; clock noise is random.",
    }
    return {
        "format": FORMAT,
        "suite": NAME,
        "provenance": about(words, left_out) | source,
        "definition": DEFINITION,
        "cells": [_rounded(asdict(cell)) for cell in cells],
    }


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 5)
    return {str(key): _rounded(each) for key, each in value.items()} if isinstance(value, dict) else value
