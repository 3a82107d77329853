"""Checks after a stage's requests: slots, memory, the policy, and the server's log."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from sglang_adaptive.client import Client
from sglang_adaptive.lab.cpu_engine.server import CpuServer
from tests.campaign.record import Lost, Unit
from tests.campaign.servers import DEEPEST
from tests.engine.workload import adaptive, require_whole_pool

PAGE = Path(__file__).parents[2] / "docs" / "troubleshooting.md"
GAP = "..."
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


def documented() -> list[tuple[re.Pattern[str], bool]]:
    """Return the messages of docs/troubleshooting.md, each with whether the page calls it a bug."""
    found = []
    for line in PAGE.read_text().splitlines():
        cells = re.split(r"(?<!\\)\| ", line)
        if line.startswith("| `") and len(cells) >= 4:
            for message in re.findall(r"`([^`]+)`", cells[1]):
                pattern = ".*".join(re.escape(part) for part in message.split(GAP))
                found.append((re.compile(pattern), "report it" in cells[-1]))
    return found


def check_log(unit: Unit, log: str, allowed: str = "", stock: str = "") -> None:
    """Count log lines of the package that the docs do not list or call a bug, and tracebacks, as losses.

    *allowed* is a pattern of lines that the unit provokes, which a traceback may follow. A traceback that *stock*, the
    log of a server without the package, also has is SGLang's. The retracted requests become a figure of the unit.
    """
    unit.figures["requests retracted"] = sum(map(int, RETRACTED.findall(log)))
    messages, lines, provoked = documented(), [STAMP.sub("", line) for line in log.splitlines()], False
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
        faults = [fault for pattern, fault in messages if pattern.search(text)]
        unit.check(bool(faults), "a message that the docs list", text)
        unit.check((bool(allowed) and provoked) or False in faults or not faults, "no message of a fault", text)
        late = "loaded while serving" in text and not any(name in text for name in FIRST_OF_A_KIND)
        unit.check(not late, "no late compile", text)


def _error(lines: list[str]) -> str:
    """Return the line that ends a traceback: the first unindented one after its start."""
    return next((line for line in lines[1:] if line and not line[0].isspace()), "")


def check_idle(unit: Unit, server: CpuServer, client: Client) -> None:
    """Count whatever is wrong with an idle server as a loss. Raises Lost if it is gone."""
    if not server.is_running():
        raise Lost(f"the server died: {server.log_tail()}")
    try:
        require_whole_pool(server)
        unit.tried["KV slots free + held = pool"] += 1
    except AssertionError as error:
        unit.check(False, "KV slots free + held = pool", error)
    state = adaptive(client)
    unit.check(not state["degraded"], "the policy is in force", state["degraded_reason"])
    rounds = sum(state["rounds_by_tier"].values())
    unit.figures |= {"rounds of the server": rounds, "switches of the server": state["switches"]}
    unit.figures["of these, rounds of lookups"] = sum(
        count for tier, count in state["rounds_by_tier"].items() if int(tier) > DEEPEST
    )
    if memory := (state.get("lookup_rounds") or {}).get("memory"):
        unit.figures["looked up in others' texts since the policy began"] = memory["rounds"]


def scheduler(server: CpuServer) -> psutil.Process:
    """Return the scheduler's process. Raises Lost if there is none."""
    for process in processes(server):
        with suppress(psutil.NoSuchProcess):  # a short-lived process
            if process.name().startswith("sglang::sched") or "sglang::scheduler" in " ".join(process.cmdline()):
                return process
    raise Lost("no scheduler process")


def processes(server: CpuServer) -> list[psutil.Process]:
    """Return every process of *server*, its main process first."""
    if server.pid is None:
        return []
    first = psutil.Process(server.pid)
    return [first, *first.children(recursive=True)]


def check_memory(unit: Unit, server: CpuServer, begun: dict[str, Any]) -> None:
    """Compare the scheduler's memory with that after its first unit, which *begun* stores."""
    used = scheduler(server).memory_info().rss / 1e6
    first = begun.setdefault("memory", used)
    unit.figures |= {"scheduler's memory, MB": round(used, 1), "of it since its first unit": round(used - first, 1)}
    unit.check(used - first <= MOST_GROWTH, "the scheduler's memory is flat", f"{first:.0f} -> {used:.0f} MB")
