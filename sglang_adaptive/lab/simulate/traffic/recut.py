"""Turns the rounds of a server into texts that any depth can be played on: runs, cut anew.

A run is the tokens of a request from one rejected draft to the next, whatever rounds served it. Steps t take
``ceil(run / (t + 1))`` rounds for it. For steps at or below those that ran this is nearly exact: a draft that was right
is right again from a later start. Above them it is a bound, for a run was only seen to go on where a round ended, from
a new draft: deeper chains would have been rejected earlier.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from sglang_adaptive.lab.simulate.cost import SimulationError
from sglang_adaptive.lab.simulate.real.texts import Texts
from sglang_adaptive.lab.simulate.traffic.rounds import Rounds
from sglang_adaptive.policy.options import MAX_STEPS

NAME = "traffic"
FEWEST_ROUNDS = 1000
"""Rounds of requests below which shares of depths are mostly luck."""


@dataclass(frozen=True)
class Seen:
    """What is known of one depth."""

    steps: int
    rounds: int
    """Rounds of requests that it drafted."""
    tokens_when_run: float | None
    """Tokens a round of a request when it ran; None when it did not."""
    tokens_recut: float
    """Tokens a round of a request with all runs cut anew."""
    from_here_up: float
    """Share of the drafted tokens that came of this depth or a deeper one."""

    @property
    def trust(self) -> str:
        """How far the figure of all runs can be trusted, in words."""
        if self.from_here_up >= 0.9:
            return "close"
        return "partly seen" if self.from_here_up >= 0.3 else "upper bound"


def runs_of(rounds: Iterable[tuple[int, int]]) -> list[int]:
    """Return the runs, in tokens, of a request's (steps, accepted drafts); the last may be cut short.

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
    """Return the requests as texts; tokens of rounds without drafts are not in them.

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


def seen(rounds: Rounds, texts: Texts, ladder: Sequence[int]) -> list[Seen]:
    """Return what is known of each of *ladder*."""
    ran: Counter[int] = Counter()
    tokens: Counter[int] = Counter()
    for steps, accepted in (entry for found in rounds.requests.values() for part in found for entry in part):
        ran[steps] += 1
        tokens[steps] += accepted + 1
    drafted = sum(count for steps, count in tokens.items() if steps)
    return [
        Seen(
            steps,
            ran[steps],
            tokens[steps] / ran[steps] if ran[steps] else None,
            len(texts.accepted) / int(texts.walk(texts.begin, texts.end, steps)[0].sum()),
            sum(count for other, count in tokens.items() if other >= max(steps, 1)) / drafted,
        )
        for steps in ladder
    ]


def batches(rounds: Rounds, most: int) -> list[int]:
    """Return the batch sizes that a tenth, half and nine tenths of the rounds did not exceed, at most *most*."""
    every = np.repeat(sorted(rounds.batches), [rounds.batches[size] for size in sorted(rounds.batches)])
    found = np.quantile(every, (0.1, 0.5, 0.9), method="inverted_cdf")
    return sorted({min(int(size), most) for size in found})
