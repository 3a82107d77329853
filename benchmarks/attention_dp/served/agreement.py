"""Thousands of rounds under changing, skewed and disturbed load: do both ranks run the same steps in each?"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

from benchmarks.attention_dp.served.equality import switching
from benchmarks.attention_dp.served.noise import PATIENCE, Noise
from benchmarks.attention_dp.served.round_log import compare, logs
from benchmarks.attention_dp.served.servers import states
from benchmarks.server.load import VOCABULARY, ClosedLoop
from benchmarks.server.process import Declared
from benchmarks.server.servers import Server
from sglang_adaptive.client import Client

LOADS = ((8, 8), (16, 1), (0, 12), (24, 24), (2, 16), (12, 0), (1, 1), (0, 1))
"""Requests of each rank, in turn."""
ACCEPTANCE = (0.9, 0.3, 0.7, 0.05, 0.8)
PHASE_ROUNDS = 130
HUNG_SECONDS = 60.0
REQUEST_TOKENS = 300
FORCED_EVERY, NOISY_EVERY = 5, 3
"""In one phase out of so many depths are forced at random, or a rank is disturbed."""


class Hung(OSError):
    """No rank has run a round for too long."""


def drive(
    server: Server,
    log: Path,
    rounds: int,
    deadline: float,
    keep: Callable[[dict[str, Any]], None],
    hung: Callable[[], None],
) -> None:
    """Serve until both ranks have run *rounds* rounds, or until *deadline* (monotonic); *keep* gets what they did.

    Raises Hung, after a call of *hung*, when no rank runs a round any more.
    """
    begun, draw = len(logs(log)[0]), random.Random(1)
    client = Client(server.client.host, server.client.port, PATIENCE)
    depths = states(server)[0]["tiers"]
    with ExitStack() as stack:
        loops = [stack.enter_context(_loop(server, rank, many)) for rank, many in enumerate(LOADS[0])]
        phase = 0
        while (done := len(logs(log)[0]) - begun) < rounds and time.monotonic() < deadline:
            server.process.declared = Declared(ACCEPTANCE[phase % len(ACCEPTANCE)])
            for loop, many in zip(loops, LOADS[phase % len(LOADS)], strict=True):
                loop.resize(many)
            forced = switching(client, depths) if phase % FORCED_EVERY == 3 else nullcontext()
            rank = draw.randrange(2)
            noise = Noise(client, rank, VOCABULARY, phase) if phase % NOISY_EVERY == 1 else nullcontext()
            with forced, noise:
                _until(log, begun + done + PHASE_ROUNDS, hung)
            phase += 1
            keep({"phases": phase, **compare(logs(log))})
        errors = [error for loop in loops for error in loop.errors]
    found = compare(_ended(log))
    told = states(server)
    keep({
        "phases": phase, **found, "errors": errors[:5],
        "degraded": [state["degraded"] for state in told],
        "steps_of_ranks": [state["current_steps"] for state in told],
    })  # fmt: skip


def _loop(server: Server, rank: int, many: int) -> ClosedLoop:
    return ClosedLoop(server.client, many, REQUEST_TOKENS, seed=rank + 1, rank=rank)


def _until(log: Path, rounds: int, hung: Callable[[], None]) -> None:
    last, at = -1, time.monotonic()
    while (now := min(map(len, logs(log)))) < rounds:
        if now != last:
            last, at = now, time.monotonic()
        if time.monotonic() - at > HUNG_SECONDS:
            hung()
            raise Hung(f"no round for {HUNG_SECONDS:.0f} s after {now}")
        time.sleep(0.1)


def _ended(log: Path) -> list[list[tuple[int, int]]]:
    """Return the logs once no round has been added for a second; without requests no rank runs one."""
    found = logs(log)
    for _ in range(20):
        time.sleep(1.0)
        again = logs(log)
        if list(map(len, again)) == list(map(len, found)):
            break
        found = again
    return again
