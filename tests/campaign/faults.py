"""A policy that raises or returns nonsense at some round, and processes that are killed."""

from __future__ import annotations

import json
import random
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from sglang_adaptive.client import Client
from sglang_adaptive.lab.cpu_engine.server import CpuServer
from tests.campaign import asking, spoiling
from tests.campaign.counts import check_idle, check_log, processes
from tests.campaign.record import Unit
from tests.campaign.servers import JUMPY, operator
from tests.engine.fault import write_plugin
from tests.engine.workload import adaptive, has_ended, wait_until

POLICY, KILLED = "policies that fail", "kill -9 of each process"
PROVOKED = r"degraded to|no history from now on|disabled metrics|could not be shared|Scheduler hit"
THROUGHPUT = {"policy": "throughput", "throughput": {"candidate_steps": [0, 1, 3, 7], "sync_rounds": 4}}
END_SECONDS = 240.0
"""Seconds until a server with one killed process must be gone completely; SGLang only checks periodically."""


@dataclass
class Spoilt:
    """A server with the plugin, and the order file that it reads."""

    server: CpuServer
    order: Path

    def tell(self, **order: object) -> None:
        part = self.order.with_suffix(".part")
        part.write_text(json.dumps({"id": time.monotonic_ns(), **order}))
        part.replace(self.order)


def policies(unit: Unit, plain: CpuServer, spoilt: Spoilt, draw: random.Random, faults: int) -> None:
    """Break the active policy at a random round, repeatedly; no answer may change, and a new policy must recover."""
    client = operator(spoilt.server)
    for _ in range(faults):
        client.configure(draw.choice((JUMPY, THROUGHPUT)))
        method, nonsense = draw.choice(spoiling.METHODS), len(spoiling.NONSENSE) - 1
        if method == "choose":
            nonsense = draw.randrange(len(spoiling.NONSENSE))
        spoilt.tell(method=method, nonsense=nonsense, rounds=draw.randint(0, 40))
        asking.compare(unit, plain, client, draw.sample(asking.questions(draw, 1), 12))
        state = adaptive(client)
        unit.tried[f"{method} fails"] += 1
        unit.figures["policies set aside"] = unit.figures.get("policies set aside", 0) + state["degraded"]
    client.configure(JUMPY)
    spoilt.tell()
    asking.compare(unit, plain, client, draw.sample(asking.questions(draw, 1), 8))
    unit.check(unit.figures["policies set aside"] > 0, "a policy that fails is set aside", "none was")
    check_idle(unit, spoilt.server, client)
    check_log(unit, spoilt.server.log_path.read_text(), PROVOKED, plain.log_path.read_text())


def killed(unit: Unit, plain: CpuServer, server: CpuServer, draw: random.Random) -> None:
    """Kill each process in turn while requests run: the whole server must end, and the next start must work."""
    for place in range(3):
        with server:
            found = processes(server)
            chosen = _of(found, place)
            name = chosen.name()
            askers = [_endless(server, draw) for _ in range(4)]
            wait_until(lambda: adaptive(server)["rounds_by_tier"], "a round ran")
            time.sleep(draw.uniform(0, 1))
            chosen.kill()
            alive = _outliving(found)
            unit.check(not alive, "a server ends when a process of it is killed", f"{name}: {alive} are left")
            for asker in askers:
                asker.join(END_SECONDS)
            unit.check(not any(map(threading.Thread.is_alive, askers)), "its clients are told", name)
            for process in alive:
                process.kill()
            check_log(unit, server.log_path.read_text(), ".")
        with server:
            asking.compare(unit, plain, server, draw.sample(asking.questions(draw, 1), 8))
            check_idle(unit, server, server)
            check_log(unit, server.log_path.read_text(), stock=plain.log_path.read_text())


def _outliving(found: list[psutil.Process]) -> list[psutil.Process]:
    """Return those of *found* that still run after END_SECONDS; return at once when none does."""
    end, alive = time.monotonic() + END_SECONDS, found
    while alive and time.monotonic() < end:
        _, alive = psutil.wait_procs(alive, 0.2)
        alive = [process for process in alive if not has_ended(process)]
    return alive


def _of(found: list[psutil.Process], place: int) -> psutil.Process:
    """Return the scheduler, the detokenizer or the launcher."""
    for process in found:
        with suppress(psutil.Error):
            if place < 2 and ("scheduler", "detokenizer")[place] in process.name() + " ".join(process.cmdline()[:1]):
                return process
    return found[0]


def _endless(client: Client, draw: random.Random) -> threading.Thread:
    """Request more than is ever answered, in the background."""
    question = asking.questions(draw, 1)[0]

    def read() -> None:
        with suppress(Exception):
            client.generate("On", 1500, ignore_eos=True)
            asking.ask(client, question)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    return thread


def variables(folder: Path) -> dict[str, str]:
    """Return the environment variables of a server with faults; its order file is ``order.json`` in *folder*."""
    plugin = write_plugin(folder / "plugin", "tests.campaign.spoiling:register")
    return {**plugin, spoiling.ORDER: str(folder / "order.json")}
