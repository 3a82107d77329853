"""Operations while requests run: configuration changes by all three ways, forced steps, pauses and more."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sglang_adaptive.client import RequestError
from sglang_adaptive.lab.cpu_engine.server import CpuServer
from sglang_adaptive.sglang_plugin.page import routes
from tests.campaign.counts import process_of
from tests.campaign.record import Unit
from tests.campaign.servers import COPYING
from tests.engine import workload

PAUSE, LONG_PAUSE = 0.15, 1.0
"""Most seconds between two operations; longer where lookups are to begin again after a new configuration."""
JUMPY_EMA: dict[str, Any] = {"ema_alpha": 1.0, "update_interval": 1, "warmup_batches": 0}
REFUSED: list[Any] = [None, 3, [], {"1": {"candidate_steps": [2]}}, {"1": {"candidate_steps": []}}, {"policy": "x"}]


@dataclass
class Desk:
    server: CpuServer
    draw: random.Random
    unit: Unit
    first: Mapping[str, Any]
    """The server's configuration at its start."""

    @property
    def file(self) -> Path:
        command = self.server.command
        return Path(command[command.index("--speculative-adaptive-config") + 1])

    @property
    def copies(self) -> bool:
        """Whether the server has lookups, which neither forced steps nor the other policy uses."""
        return "lookup" in self.first.get("throughput", {})

    def config(self) -> dict[str, Any]:
        """Return a valid configuration of either policy."""
        tiers = sorted(self.draw.sample([0, 1, 3, 7], self.draw.randint(1, 4)))
        if self.draw.random() < (0.8 if self.copies else 0.4) and tiers != [0]:
            options = {"candidate_steps": tiers, "sync_rounds": 4}
            if self.copies and self.draw.random() < 0.8:
                options |= COPYING
            return {"watch": True, "policy": "throughput", "throughput": options}
        slots = {str(size): {"candidate_steps": tiers} for size in self.draw.sample([1, 2, 4, 8], 2)}
        return {"watch": True, "policy": "ema", **JUMPY_EMA, **slots}


def force(desk: Desk) -> None:
    desk.server.force_steps(desk.draw.choice([0, 1, 3, 7, *[None] * (10 if desk.copies else 1)]))


def force_often(desk: Desk) -> None:
    for _ in range(20):
        force(desk)


def configure(desk: Desk) -> None:
    desk.server.configure(desk.config())


def configure_wrongly(desk: Desk) -> None:
    with suppress(RequestError):
        desk.server.post("/set_internal_state", {"server_args": {"adaptive_config": desk.draw.choice(REFUSED)}})
        desk.unit.lose("a wrong configuration is refused", "it was taken")


def write_file(desk: Desk) -> None:
    """Change the watched file, in place or by a rename, sometimes to half a configuration."""
    content = json.dumps(desk.config())
    if desk.draw.random() < 0.2:
        content = content[: desk.draw.randrange(len(content))]
    if desk.draw.random() < 0.5:
        desk.file.write_text(content)
    else:
        part = desk.file.with_suffix(".new")
        part.write_text(content)
        part.replace(desk.file)


def hang_up(desk: Desk) -> None:
    """Send SIGHUP, sometimes after writing a new configuration."""
    if desk.draw.random() < 0.7:
        write_file(desk)
    assert desk.server.pid is not None
    os.kill(desk.server.pid, signal.SIGHUP)


def extend_every(desk: Desk) -> None:
    every = {"adaptive_zero_step_extend_every": desk.draw.randint(1, 8)}
    with suppress(RequestError):  # a server that holds no rows refuses this
        desk.server.post("/set_internal_state", {"server_args": every})


def pause(desk: Desk) -> None:
    """Pause generation, keeping or retracting the requests' KV; sometimes flush the cache during the pause."""
    desk.server.post("/pause_generation", {"mode": desk.draw.choice(["in_place", "retract"])})
    time.sleep(desk.draw.uniform(0, 0.3))
    if desk.draw.random() < 0.3:
        flush(desk)
    desk.server.post("/continue_generation", {})


def flush(desk: Desk) -> None:
    try:
        desk.server.post("/flush_cache", {})
    except RequestError as error:
        if "400" not in str(error):  # the status of a refusal while requests run
            raise


def update_weights(desk: Desk) -> None:
    """Open a session of weight updates and end it, sometimes in a pause.

    Not from disk: SGLang 0.5.23 also loads the target's files into the draft, and ends if their shapes differ.
    """
    paused = desk.draw.random() < 0.5
    if paused:
        desk.server.post("/pause_generation", {"mode": "retract"})
    desk.server.post("/begin_weight_update", {})
    desk.server.post("/end_weight_update", {})
    if paused:
        desk.server.post("/continue_generation", {})


def starve(desk: Desk) -> None:
    """Stop the scheduler's process for a while, as if the machine were overloaded."""
    process = process_of(desk.server, "scheduler")
    process.suspend()
    try:
        time.sleep(desk.draw.uniform(0.05, 2.0))
    finally:
        process.resume()


def look(desk: Desk) -> None:
    workload.adaptive(desk.server)
    for path in (routes.PAGE, routes.DATA, f"{routes.HISTORY_PATH}?span=60", "/metrics"):
        with suppress(RequestError):  # a busy scheduler answers 503 after five seconds
            desk.server.get(path)


OPERATIONS: dict[str, tuple[Callable[[Desk], None], int]] = {
    "force steps": (force, 6),
    "force steps 20 times": (force_often, 4),
    "configuration by request": (configure, 6),
    "wrong configuration by request": (configure_wrongly, 2),
    "configuration in the watched file": (write_file, 4),
    "SIGHUP": (hang_up, 4),
    "rounds that share an extend": (extend_every, 2),
    "pause and go on": (pause, 2),
    "cache flush": (flush, 2),
    "session of weight updates": (update_weights, 1),
    "SIGSTOP of the scheduler": (starve, 1),
    "look at the state, the page and the metrics": (look, 2),
}
"""Each with its relative frequency. Memory is not released, because SGLang does that only on GPUs."""


@contextmanager
def meanwhile(unit: Unit, server: CpuServer, draw: random.Random, first: Mapping[str, Any]) -> Iterator[None]:
    """Run random operations until the block ends; then restore the *first* configuration."""
    desk = Desk(server, draw, unit, first)
    names, weights = list(OPERATIONS), [weight for _, weight in OPERATIONS.values()]

    def operate() -> None:
        time.sleep(draw.uniform(0.0, LONG_PAUSE if desk.copies else PAUSE))
        (name,) = draw.choices(names, weights)
        if server.is_running():
            try:
                OPERATIONS[name][0](desk)
                unit.tried[name] += 1
            except Exception as error:
                unit.check(False, name, f"{type(error).__name__}: {error}")

    try:
        with workload.meanwhile(operate):
            yield
    finally:
        if server.is_running():
            server.force_steps(None)
            desk.file.write_text(json.dumps(first))
            server.configure(dict(first))
