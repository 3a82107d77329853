"""``sglang-adaptive simulate --trace FILE``."""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from sglang_adaptive.command_line import listed
from sglang_adaptive.lab.simulate import text
from sglang_adaptive.lab.simulate.contenders import Contender, chosen, fitting
from sglang_adaptive.lab.simulate.cost import FloatArray, RoundCost, load_cost
from sglang_adaptive.lab.simulate.real.cell import Cell, Place, play_cell
from sglang_adaptive.lab.simulate.real.command import asked
from sglang_adaptive.lab.simulate.real.scenes import Work, queue_size
from sglang_adaptive.lab.simulate.real.serve import FixedSteps
from sglang_adaptive.lab.simulate.real.suite import DEFAULT_ROUNDS, NOISE_ROUNDS
from sglang_adaptive.lab.simulate.real.texts import Texts
from sglang_adaptive.lab.simulate.report import FORMAT, Played, about
from sglang_adaptive.lab.simulate.rounds import (
    FEWEST_ROUNDS,
    NAME,
    Rounds,
    Seen,
    batches,
    read_rounds,
    seen,
    texts_of,
)
from sglang_adaptive.lab.simulate.scenes import LARGEST_BATCH
from sglang_adaptive.lab.simulate.trace import clock_factors

KNOWING = ("knows-contexts", "knows-drafts")
"""The oracles that play there: a trace has no categories."""
HOW = (
    "A run is the tokens of a request from one rejected draft to the next. At t steps it takes ceil(run / (t + 1)) "
    "rounds. That is close if the trace has rounds of t or more steps, and an upper bound if it has only fewer steps."
)


def run(options: argparse.Namespace, words: list[str]) -> Played:
    """Read the trace, re-cut its runs, and play every policy and depth on them."""
    rounds = read_rounds(options.trace)
    texts = texts_of(rounds)
    name, cost = load_cost(options.profile)
    count = options.rounds or DEFAULT_ROUNDS
    policies, oracles = asked(options.policy, KNOWING)
    contenders, left_out = fitting(chosen(policies, cost.steps) if policies else [], cost.steps)
    clock = clock_factors(NOISE_ROUNDS, np.random.default_rng([options.seed, 1]))
    cells = [
        _cell(_work(texts, batch, count), cost, name, clock, contenders, oracles)
        for batch in batches(rounds, min(LARGEST_BATCH, cost.batches[-1]))
    ]
    source = about(words, left_out) | {"profile": name, "rounds": count, "seed": options.seed}
    depths = seen(rounds, texts, cost.steps)
    report = {
        "format": FORMAT,
        "provenance": source,
        "definition": HOW,
        "rounds": rounds.count,
        "rounds_lost": rounds.lost,
        "requests": len(rounds.requests),
        "rounds_by_batch_size": {str(size): times for size, times in sorted(rounds.batches.items())},
        "doubts": _doubts(rounds, depths, cells, name),
        "depths": [_depth(one) for one in depths],
        "batches": [_batch(cell) for cell in cells],
    }
    return Played(report, text.traffic(options.trace.name, report))


def _work(texts: Texts, batch: int, rounds: int) -> Work:
    """Return a closed loop of *batch* requests, in the server's order, repeated as needed."""
    order = np.arange(queue_size(texts.mean_length, batch, rounds)) % len(texts.begin)
    return Work(NAME, texts, texts.begin[order], texts.end[order], texts.kind[order], batch)


def _cell(
    work: Work, cost: RoundCost, profile: str, clock: FloatArray, contenders: list[Contender], oracles: list[str]
) -> Cell:
    fixed = [FixedSteps(work, steps) for steps in cost.steps]
    place = Place(work, cost, cost.table(work.most), clock, fixed)
    return play_cell(place, (NAME, str(work.most), profile), contenders, oracles)


def _doubts(rounds: Rounds, depths: list[Seen], cells: list[Cell], profile: str) -> list[str]:
    """Return what makes the figures uncertain, besides the trust of each depth."""
    found = []
    every = (steps for stretches in rounds.requests.values() for stretch in stretches for steps, _ in stretch)
    drafted = sum(steps > 0 for steps in every)
    known = {one.steps: one for one in depths}
    unplayed = sorted(rounds.steps.keys() - known.keys())
    if unplayed:
        found.append(
            f"Rounds ran at {listed(unplayed)} steps, for which {profile} has no times: their runs are split "
            "again, and these depths are not simulated."
        )
    if drafted < FEWEST_ROUNDS:
        found.append(f"Only {drafted} rounds drafted; fewer than {FEWEST_ROUNDS} show little.")
    for cell in cells:
        best = known[cell.best_single]
        if best.trust != "close":
            found.append(f"Batch {cell.load}, trust in the best single depth, {best.steps} steps: {best.trust}.")
    return found


def _depth(one: Seen) -> dict[str, Any]:
    return {
        "steps": one.steps,
        "rounds_run": one.rounds,
        "tokens_a_round_when_run": None if one.tokens_when_run is None else round(one.tokens_when_run, 4),
        "tokens_a_round_recut": round(one.tokens_recut, 4),
        "share_seen_here_or_deeper": round(one.from_here_up, 4),
        "trust": one.trust,
    }


def _batch(cell: Cell) -> dict[str, Any]:
    best = cell.singles[cell.best_single]
    shares = {f"always {steps}": rate / best for steps, rate in cell.singles.items()}
    shares |= {name: score.over_single for name, score in cell.scores.items()}
    return {
        "batch_size": int(cell.load),
        "best_single": cell.best_single,
        "tokens_per_second_at_best_single": round(best * int(cell.load), 1),
        "over_best_single": {name: round(share, 5) for name, share in shares.items()},
        "switches_an_hour": {name: round(score.switches, 1) for name, score in cell.scores.items()},
    }
