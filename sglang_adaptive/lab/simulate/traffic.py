"""``sglang-adaptive simulate --trace FILE``: re-cuts recorded rounds into texts that any depth can be played on."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from sglang_adaptive.command_line import listed
from sglang_adaptive.lab.simulate import text
from sglang_adaptive.lab.simulate.contenders import chosen
from sglang_adaptive.lab.simulate.cost import SimulationError, load_cost
from sglang_adaptive.lab.simulate.real.cell import Cell, Place, play_cell
from sglang_adaptive.lab.simulate.real.oracles import OF_CONTEXTS, OF_DRAFTS
from sglang_adaptive.lab.simulate.real.scenes import closed, queue_size
from sglang_adaptive.lab.simulate.real.suite import DEFAULT_ROUNDS, NOISE_ROUNDS, asked
from sglang_adaptive.lab.simulate.real.texts import Texts
from sglang_adaptive.lab.simulate.report import FORMAT, Played, about
from sglang_adaptive.lab.simulate.rounds import Rounds, read_rounds
from sglang_adaptive.lab.simulate.scenes import LARGEST_BATCH
from sglang_adaptive.lab.simulate.trace import clock_factors
from sglang_adaptive.policy.options import MAX_STEPS

NAME = "traffic"
FEWEST_ROUNDS = 1000
"""Below this many rounds of requests, shares of depths are mostly luck."""
CLOSE = "close"
"""Trust in the figures of a depth that a trace shows well."""
KNOWING = (OF_CONTEXTS, OF_DRAFTS)
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
    contenders, left_out = chosen(policies, cost.steps)
    clock = clock_factors(NOISE_ROUNDS, np.random.default_rng([options.seed, 1]))
    cells = []
    for batch in batches(rounds, min(LARGEST_BATCH, cost.batches[-1])):
        # In the server's order, repeated as needed.
        order = np.arange(queue_size(texts.mean_length, batch, count)) % len(texts.begin)
        work = closed(NAME, texts, order, batch)
        place = Place(work, cost, cost.table(batch), clock)
        cells.append(play_cell(place, (NAME, str(batch), name), contenders, oracles))
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
        "depths": depths,
        "batches": [_batch(cell) for cell in cells],
    }
    return report, text.traffic(options.trace.name, report)


def _doubts(rounds: Rounds, depths: Sequence[dict[str, Any]], cells: list[Cell], profile: str) -> list[str]:
    """Return what makes the figures uncertain, besides the trust of each depth."""
    found = []
    drafted = sum(len(one.requests) for one in rounds.stream if one.steps)
    trust = {one["steps"]: one["trust"] for one in depths}
    unplayed = sorted({one.steps for one in rounds.stream} - trust.keys())
    if unplayed:
        found.append(
            f"Rounds ran at {listed(unplayed)} steps, for which {profile} has no times: their runs are split "
            "again, and these depths are not simulated."
        )
    if drafted < FEWEST_ROUNDS:
        found.append(f"Only {drafted} rounds drafted; fewer than {FEWEST_ROUNDS} show little.")
    for cell in cells:
        if (said := trust[cell.best_single]) != CLOSE:
            found.append(f"Batch {cell.load}, trust in the best single depth, {cell.best_single} steps: {said}.")
    return found


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


# A run is the tokens of a request from one rejected draft to the next, regardless of the rounds that produced them. It
# takes ``ceil(run / (t + 1))`` rounds at t steps. At or below the steps that ran this is nearly exact: a draft that was
# right is right again from a later start. Above them it is only a bound, because a run was only seen to continue
# after a round ended, from a new draft: deeper chains would have been rejected earlier.


def runs_of(rounds: Iterable[tuple[int, int]]) -> list[int]:
    """Return the runs, in tokens, of a request's (steps, accepted drafts); the last may be incomplete.

    A round of 0 steps drafted nothing: it ends a run and is left out.
    """
    runs, current = [], 0
    for steps, accepted in rounds:
        current += accepted + 1 if steps else 0
        if current and accepted == steps and steps:
            continue
        if current:
            runs.append(current)
        current = 0
    return [*runs, current] if current else runs


def texts_of(rounds: Rounds) -> Texts:
    """Return the requests as texts, without the tokens of rounds without drafts.

    Raises:
        SimulationError: nothing was drafted.
    """
    lengths, accepted = [], bytearray()
    for stretches in rounds.requests.values():
        before = len(accepted)
        for run in (run for stretch in stretches for run in runs_of(stretch)):
            accepted.extend(min(left, MAX_STEPS) for left in range(run - 1, -1, -1))
        if len(accepted) > before:
            lengths.append(len(accepted) - before)
    if not lengths:
        raise SimulationError("--trace: every round ran at 0 steps; expected some that drafted")
    ends = np.array(list(accumulate(lengths)), dtype=np.int64)
    return Texts(bytes(accepted), ends - np.array(lengths), ends, np.zeros(len(lengths), dtype=np.int64), (NAME,))


def seen(rounds: Rounds, texts: Texts, ladder: Sequence[int]) -> list[dict[str, Any]]:
    """Return what is known about each of *ladder*, as JSON builtins."""
    ran: Counter[int] = Counter()
    tokens: Counter[int] = Counter()
    for steps, accepted in (entry for found in rounds.requests.values() for part in found for entry in part):
        ran[steps] += 1
        tokens[steps] += accepted + 1
    drafted = sum(count for steps, count in tokens.items() if steps)
    found = []
    for steps in ladder:
        recut = len(texts.accepted) / int(texts.walk(texts.begin, texts.end, steps).sum())
        share = sum(count for other, count in tokens.items() if other >= max(steps, 1)) / drafted
        found.append(
            {
                "steps": steps,
                "rounds_run": ran[steps],
                "tokens_a_round_when_run": round(tokens[steps] / ran[steps], 4) if ran[steps] else None,
                "tokens_a_round_recut": round(recut, 4),
                "share_seen_here_or_deeper": round(share, 4),
                "trust": CLOSE if share >= 0.9 else "partly seen" if share >= 0.3 else "upper bound",
            }
        )
    return found


def batches(rounds: Rounds, most: int) -> list[int]:
    """Return the batch sizes that a tenth, half and nine tenths of the rounds did not exceed, at most *most*."""
    found = np.quantile([*rounds.batches.elements()], (0.1, 0.5, 0.9), method="inverted_cdf")
    return sorted({min(int(size), most) for size in found})
