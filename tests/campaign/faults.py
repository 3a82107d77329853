"""Processes that are killed."""

from __future__ import annotations

import random
import threading
import time
from contextlib import suppress

import psutil

from sglang_adaptive.client import Client
from sglang_adaptive.lab.cpu_engine.server import CpuServer
from tests.campaign import asking
from tests.campaign.counts import check_end, check_log, process_of, processes
from tests.campaign.record import Unit
from tests.engine.workload import adaptive, has_ended, wait_until

KILLED = "kill -9 of each process"
END_SECONDS = 240.0
"""Seconds until a server with one killed process must be gone completely; SGLang only checks periodically."""


def killed(unit: Unit, plain: CpuServer, server: CpuServer, draw: random.Random) -> None:
    """Kill each process in turn while requests run: the whole server must end, and the next start must work."""
    for role in ("scheduler", "detokenizer", "launcher"):
        with server:
            found = processes(server)
            chosen = found[0] if role == "launcher" else process_of(server, role)
            askers = [_endless(server, draw) for _ in range(4)]
            wait_until(lambda: adaptive(server)["rounds_by_tier"], "a round ran")
            time.sleep(draw.uniform(0, 1))
            chosen.kill()
            alive = _outliving(found)
            unit.check(not alive, "a server ends when a process of it is killed", f"{role}: {alive} are left")
            for asker in askers:
                asker.join(END_SECONDS)
            unit.check(not any(map(threading.Thread.is_alive, askers)), "its clients are told", role)
            for process in alive:
                process.kill()
            check_log(unit, server.log_path.read_text(), ".")
        with server:
            asking.compare(unit, plain, server, draw.sample(asking.questions(draw, 1), 8))
            check_end(unit, server, plain)


def _outliving(found: list[psutil.Process]) -> list[psutil.Process]:
    """Return those of *found* that still run after END_SECONDS; return at once when none does."""
    end, alive = time.monotonic() + END_SECONDS, found
    while alive and time.monotonic() < end:
        _, alive = psutil.wait_procs(alive, 0.2)
        alive = [process for process in alive if not has_ended(process)]
    return alive


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
