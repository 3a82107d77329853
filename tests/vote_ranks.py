"""Runs attention DP ranks as processes: each has its own policy, requests and clock, and sends a ballot each round."""

from __future__ import annotations

import multiprocessing
import random
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection

from sglang_adaptive.policy.observation import RoundObservation
from sglang_adaptive.policy.throughput import ThroughputOptions, ThroughputPolicy
from sglang_adaptive.policy.vote import Ballot, agree, believed, silent

DEPTHS, LAUNCH = (0, 1, 2, 3, 5, 7), 3


@dataclass(frozen=True)
class Nature:
    """A rank's peculiarities; ranges of rounds are half-open."""

    requests: int
    acceptance: float
    idle: tuple[int, int] = (0, 0)
    fails_at: int | None = None
    lag: int = 1
    """Rounds until a result arrives."""
    clock: float = 1.0
    """Ratio of its clock's reading to the true time."""


def serve(nature: Nature, seed: int, end: Connection) -> None:
    """Until the connection closes: send a row, receive all rows, send the agreed steps and this rank's own wish."""
    draw, live, waiting = random.Random(seed), LAUNCH, []
    policy, failed, agreed = ThroughputPolicy(LAUNCH, ThroughputOptions(DEPTHS)), False, LAUNCH
    while True:
        try:
            at = end.recv()
        except EOFError:
            return
        requests = 0 if nature.idle[0] <= at < nature.idle[1] else nature.requests
        if at == nature.fails_at:
            del policy._acceptance
        ballot = silent(DEPTHS, agreed, requests, failed)
        if requests and not failed:
            ballot, failed = _ask(policy, agreed, requests)
        end.send(ballot.row())
        rows, place = end.recv()
        found, most = agree(rows, DEPTHS, LAUNCH), max(row[0] for row in rows)
        agreed, live = found.steps, found.running
        if found.leader is not None and not failed:
            policy.follow(most, agreed, live, found.leader == place)
        end.send((live, agree([ballot.row()], DEPTHS, LAUNCH).steps, ballot.failed))
        if requests:
            seconds = nature.clock * draw.gauss(1.0, 0.02) * (0.01 + 2e-5 * most * (live + 1) + 4e-4 * live)
            counts = [_accepted(draw, nature.acceptance, live) for _ in range(requests)]
            shadow = [_accepted(draw, nature.acceptance, 1) for _ in range(requests)] if live == 0 else []
            waiting.append(RoundObservation(live, counts, most, seconds, shadow_accepts=shadow))
        if len(waiting) > nature.lag and not failed:
            policy.observe(waiting.pop(0))
            if policy.cost_sync_due:
                policy.import_cost(policy.export_cost())


def _ask(policy: ThroughputPolicy, live: int, requests: int) -> tuple[Ballot, bool]:
    try:
        return believed(DEPTHS, live, requests, *policy.outlook(requests, live)), False
    except Exception:
        return silent(DEPTHS, live, requests, failed=True), True


def _accepted(draw: random.Random, acceptance: float, steps: int) -> int:
    count = 0
    while count < steps and draw.random() < acceptance:
        count += 1
    return count


class Rank:
    """A running process and this end of its connection; a context manager that ends it."""

    def __init__(self, nature: Nature, seed: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.end, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(nature, seed, theirs), daemon=True)
        self.process.start()
        theirs.close()

    def kill(self) -> None:
        """Kill the process and wait until it is gone."""
        self.process.kill()
        self.process.join()
        self.end.close()


def gathered_round(at: int, ranks: Sequence[Rank | None]) -> list[tuple[int, int, bool]]:
    """Play the gather of round *at*; return what each live rank ran, what it would run alone, and if it failed.

    The row of a missing rank is that of ``silent``, which SGLang fills in.
    """
    there = [rank for rank in ranks if rank is not None]
    for rank in there:
        rank.end.send(at)
    rows = [silent(DEPTHS).row() if rank is None else rank.end.recv() for rank in ranks]
    for place, rank in enumerate(ranks):
        if rank is not None:
            rank.end.send((rows, place))
    return [rank.end.recv() for rank in there]
