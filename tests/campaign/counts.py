"""Checks after a stage's requests: slots, memory, the policy, and the server's log."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

import psutil

from sglang_adaptive.lab.cpu_engine.server import CpuServer
from tests.campaign.record import Lost, Unit
from tests.campaign.servers import DEEPEST
from tests.engine.workload import adaptive, require_whole_pool
from tests.messages import documented, pattern

FIRST_OF_A_KIND = ("_row_logsumexp_topk_kernel",)
"""Triton kernels that any server loads with its first request of a kind: one for each number of top tokens that is
asked for at a prompt's positions."""
STAMP = re.compile(r"^\[[^\]]*\] ")
OURS = re.compile(r"adaptive|cost profile|sglang-adaptive")
"""Prefixes of the package's log lines."""
RETRACTED = re.compile(r"KV cache pool is full\. Retract requests\. #retracted_reqs: (\d+)")
INTERRUPTED = ("KeyboardInterrupt", "asyncio.exceptions.CancelledError")
"""Last lines of tracebacks of a server that was stopped."""
GONE_BEFORE_IT_BEGAN = "AttributeError: 'GenerateReqInput' object has no attribute 'is_single'"
"""SGLang 0.5.23's error when the client left before the stream was looked at."""
MOST_GROWTH = 64.0
"""MB by which a scheduler's memory may grow after its first unit, over any number of rounds."""


def check_log(unit: Unit, log: str, allowed: str = "", stock: str = "") -> None:
    """Count log lines of the package that the docs do not list or call a bug, and tracebacks, as losses.

    *allowed* is a pattern of lines that the unit provokes, which a traceback may follow. A traceback that *stock*, the
    log of a server without the package, also has is SGLang's. The retracted requests become a figure of the unit.
    """
    unit.figures["requests retracted"] = sum(map(int, RETRACTED.findall(log)))
    messages = [(pattern(message), fault) for message, fault in documented()]
    lines, provoked = [STAMP.sub("", line) for line in log.splitlines()], False
    for at, text in enumerate(lines):
        if "Traceback (most" in text:
            error = _error(lines[at:])
            ended = error == GONE_BEFORE_IT_BEGAN or error.startswith(INTERRUPTED)
            known = (bool(allowed) and provoked) or ended or error in stock
            unit.check(known, "no traceback in the log", "\n".join(lines[max(0, at - 1) : at + 60]))
        if text:
            provoked = re.search(allowed, text) is not None
        if not OURS.match(text):
            continue
        faults = [fault for message, fault in messages if message.search(text)]
        unit.check(bool(faults), "a message that the docs list", text)
        unit.check((bool(allowed) and provoked) or False in faults or not faults, "no message of a fault", text)
        late = "loaded while serving" in text and not any(name in text for name in FIRST_OF_A_KIND)
        unit.check(not late, "no late compile", text)


def _error(lines: list[str]) -> str:
    """Return the line that ends a traceback: the first unindented one after its start."""
    return next((line for line in lines[1:] if line and not line[0].isspace()), "")


def check_end(unit: Unit, server: CpuServer, plain: CpuServer, allowed: str = "", since: int = 0) -> None:
    """Count whatever is wrong with an idle server, or with its log after *since* bytes, as a loss.

    *allowed* is as for check_log. Raises Lost if the server is gone.
    """
    if not server.is_running():
        raise Lost(f"the server died: {server.log_tail()}")
    try:
        require_whole_pool(server)
        unit.tried["KV slots free + held = pool"] += 1
    except AssertionError as error:
        unit.check(False, "KV slots free + held = pool", error)
    state = adaptive(server)
    unit.check(not state["degraded"], "the policy is in force", state["degraded_reason"])
    rounds = sum(state["rounds_by_tier"].values())
    unit.figures |= {"rounds of the server": rounds, "switches of the server": state["switches"]}
    unit.figures["of these, rounds of lookups"] = sum(
        count for tier, count in state["rounds_by_tier"].items() if int(tier) > DEEPEST
    )
    if memory := (state.get("lookup_rounds") or {}).get("memory"):
        unit.figures["looked up in others' texts since the policy began"] = memory["rounds"]
    told = server.log_path.read_bytes()[since:].decode(errors="replace")
    check_log(unit, told, allowed, plain.log_path.read_text())


def process_of(server: CpuServer, role: str) -> psutil.Process:
    """Return the "scheduler" or the "detokenizer". Raises Lost if there is none."""
    for process in processes(server):
        with suppress(psutil.Error):  # a short-lived process
            if f"sglang::{role}"[:13] in process.name() + " ".join(process.cmdline()):  # Linux cuts names
                return process
    raise Lost(f"no {role} process")


def processes(server: CpuServer) -> list[psutil.Process]:
    """Return every process of *server*, its main process first."""
    if server.pid is None:
        return []
    first = psutil.Process(server.pid)
    return [first, *first.children(recursive=True)]


def check_memory(unit: Unit, server: CpuServer, begun: dict[str, Any]) -> None:
    """Compare the scheduler's memory with that after its first unit, which *begun* stores."""
    used = process_of(server, "scheduler").memory_info().rss / 1e6
    first = begun.setdefault("memory", used)
    unit.figures |= {"scheduler's memory, MB": round(used, 1), "of it since its first unit": round(used - first, 1)}
    unit.check(used - first <= MOST_GROWTH, "the scheduler's memory is flat", f"{first:.0f} -> {used:.0f} MB")
