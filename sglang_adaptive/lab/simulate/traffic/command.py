"""``sglang-adaptive simulate --trace FILE``."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

import numpy as np

from sglang_adaptive.lab.simulate.contenders import Contender, chosen, fitting
from sglang_adaptive.lab.simulate.cost import RoundCost, load_cost
from sglang_adaptive.lab.simulate.real.cell import Cell, Place, play_cell
from sglang_adaptive.lab.simulate.real.oracles import ORACLES
from sglang_adaptive.lab.simulate.real.scenes import Work, queue_size
from sglang_adaptive.lab.simulate.real.serve import FixedSteps
from sglang_adaptive.lab.simulate.real.suite import NOISE_ROUNDS
from sglang_adaptive.lab.simulate.real.texts import Texts
from sglang_adaptive.lab.simulate.report import about
from sglang_adaptive.lab.simulate.scenes import LARGEST_BATCH
from sglang_adaptive.lab.simulate.trace import clock_factors
from sglang_adaptive.lab.simulate.traffic.rounds import NAME, Rounds, Seen, batches, read_rounds, seen, texts_of
from sglang_adaptive.lookups.tally import ROWS, worth

POLICIES = ("throughput", "ema", "ema-all")
"""Policies that play where none is named; every fixed depth plays anyway."""
KNOWING = ("knows-contexts", "knows-drafts")
"""The oracles that play there: a trace knows no categories."""
DEFAULT_ROUNDS = 2000


@dataclass(frozen=True, eq=False)
class Replay:
    """Everything that a report on an operator's traffic tells."""

    rounds: Rounds
    texts: Texts
    seen: list[Seen]
    """By depth of the ladder."""
    cells: list[Cell]
    """By batch size."""
    seconds: dict[int, dict[int, float]]
    """Round times that were used, by batch size and steps."""
    lookups: dict[str, Any]
    """What lookups would have got accepted, with their ``worth`` on these times; see `sglang_adaptive.lookups`."""
    source: dict[str, Any]


def replay(options: argparse.Namespace, words: list[str]) -> Replay:
    """Read the trace, cut its runs anew, and play every policy and depth on them."""
    rounds = read_rounds(options.trace)
    texts = texts_of(rounds)
    name, cost = load_cost(options.profile)
    sizes = batches(rounds, min(LARGEST_BATCH, cost.batches[-1]))
    count = options.rounds or DEFAULT_ROUNDS
    table = cost.table(max(sizes))
    named = [policy for policy in options.policy if policy not in ORACLES]
    wanted = named or ([] if options.policy else list(POLICIES))
    contenders, left_out = fitting(chosen(wanted, cost.steps), cost.steps) if wanted else ([], [])
    cells = [_cell(texts, cost, name, batch, count, contenders, options) for batch in sizes]
    source = about(words) | {"profile": name, "rounds": count, "seed": options.seed}
    source |= {"left_out": left_out} if left_out else {}
    seconds = {size: {steps: float(table[size, steps]) for steps in cost.steps} for size in sizes}
    found = seen(rounds, texts, cost.steps)
    return Replay(rounds, texts, found, cells, seconds, _lookups(rounds, found, cost), source)


def _lookups(rounds: Rounds, found: list[Seen], cost: RoundCost) -> dict[str, Any]:
    """Return the lookups of *rounds* as builtins, priced where there are times of ROWS requests: see `worth`."""
    if cost.batches[-1] < ROWS:
        return rounds.lookups.as_dict() | {"worth": None}
    table = cost.table(ROWS)
    alone = {steps: float(table[1, steps]) for steps in cost.steps}
    tokens = {one.steps: one.tokens_recut for one in found}
    return rounds.lookups.as_dict() | {"worth": worth(rounds.lookups, alone, tokens, float(table[ROWS, 0]))}


def _cell(
    texts: Texts,
    cost: RoundCost,
    profile: str,
    batch: int,
    rounds: int,
    contenders: list[Contender],
    options: argparse.Namespace,
) -> Cell:
    """Play a closed loop of *batch* requests, in the order in which the server had them, again and again."""
    order = np.arange(queue_size(texts.mean_length, batch, rounds)) % len(texts.begin)
    work = Work(NAME, texts, texts.begin[order], texts.end[order], texts.kind[order], batch)
    clock = clock_factors(NOISE_ROUNDS, np.random.default_rng([options.seed, 1]))
    fixed = [FixedSteps(work, steps) for steps in cost.steps]
    oracles = [name for name in KNOWING if name in options.policy or not options.policy]
    place = Place(work, cost, cost.table(batch), clock, fixed)
    return play_cell(place, (NAME, str(batch), profile), contenders, oracles)


def lines_of(cell: Cell) -> list[tuple[str, float, float | None]]:
    """Return name, tokens/s over the best single depth, and switches an hour of everybody, fixed depths first."""
    best = cell.singles[cell.best_single]
    fixed = [(f"always {steps}", rate / best, None) for steps, rate in cell.singles.items()]
    return [*fixed, *((name, score.over_single, score.switches) for name, score in cell.scores.items())]
