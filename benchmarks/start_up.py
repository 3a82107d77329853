"""Time how long an adaptive and a static server take to be ready, each alone on the host.

    python -m benchmarks.start_up --work DIR

The first turn is a fresh host: each server has its own home folder without compiled kernels. The second turn starts
both again with the same folders; `--turns again` uses those of an earlier run in the same `--work`. The servers run
without the benchmarks' plugin. For each server the result has the seconds from its first process until it is ready and
those of each part, the start-up report of /server_info, and the seconds of some sampled requests, sent one after the
other.
"""

from __future__ import annotations

import re
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness import start
from benchmarks.harness.load import prompt
from benchmarks.harness.results import Report, command_parser
from benchmarks.harness.start import Host, NotStarted, Policy, Server
from sglang_adaptive.client import RequestError

SCHEMA = "start-up-1"
TURNS = ("fresh", "again")
SAMPLED = {"max_new_tokens": 24, "temperature": 1.0, "top_p": 0.9, "top_k": 20, "ignore_eos": True}

PARTS = {
    "processes, imports": "Load weight begin",
    "weights, KV pools": "Memory pool end",
    "CUDA graphs": "adaptive: building",
    "CUDA graphs of further depths": "Engine startup timings",
    "first request, warm-up": "ready to roll",
}
"""The parts of a start-up, and the log line that ends each. A static server has no further depths."""

_STAMP = re.compile(r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)")


def main(argv: Sequence[str]) -> int:
    """Start the servers in both turns; returns 0, or 1 if one did not start."""
    parser = command_parser("start_up", __doc__)
    start.add_options(parser, budget=540)
    parser.add_argument("--contenders", type=start.names, default=["throughput", "static-3"])
    parser.add_argument("--pair", default="llama8b", help="shape of target and draft")
    parser.add_argument("--batch", type=int, default=64, help="largest batch size with CUDA graphs")
    parser.add_argument("--requests", type=int, default=10, help="sampled requests (a stock server compiles for them)")
    parser.add_argument("--turns", type=start.some_of(TURNS), default=TURNS, help="of fresh, again (default: both)")
    given = parser.parse_args(argv)
    end = start.begin(given)
    extra = given.server_arguments
    if given.host == "cpu":
        host = start.cpu(given.batch, extra=extra)
    else:
        host = start.gpu(given.models, given.batch, given.pair, extra=extra, prefill_graphs=True)
    report = Report(given.results / "start-up.json", "start_up", argv, schema=SCHEMA, servers={}, turns={})
    homes = {name: given.work / f"home-{name}" for name in given.contenders}
    if "fresh" in given.turns:
        for home in homes.values():
            shutil.rmtree(home, ignore_errors=True)
    elif missing := [str(home) for home in homes.values() if not home.is_dir()]:
        parser.error(f"--turns again: no {missing[0]}; expected the folder of an earlier fresh start")
    failed = 0
    for turn in given.turns:
        report.content["turns"][turn] = {}
        for policy in start.chosen(given.contenders):
            server = _server(_at_home(policy, homes[policy.name]), host, given.work / turn)
            begun = time.time()
            server.launch()
            try:
                found = measured(server, begun, end, given.requests)
                report.content["turns"][turn][policy.name], report.content["servers"][policy.name] = found
                report.say(f"{turn}, {policy.name}: ready after {server.start_seconds:.1f} s")
            except (NotStarted, RequestError, OSError) as problem:
                failed += 1
                report.note(f"{turn}, {policy.name}: {problem}")
            report.write()
            server.stop()
    return int(failed > 0)


def _at_home(policy: Policy, home: Path) -> Policy:
    """Return the policy with every cache of compiled kernels below *home*."""
    folders = {"TRITON_CACHE_DIR": ".triton/cache", "TORCHINDUCTOR_CACHE_DIR": "inductor", "XDG_CACHE_HOME": ".cache"}
    return replace(policy, variables={"HOME": str(home), **{name: str(home / at) for name, at in folders.items()}})


def _server(policy: Policy, host: Host, folder: Path) -> Server:
    Path(policy.variables["HOME"]).mkdir(parents=True, exist_ok=True)
    return start.server_of(policy, folder, partial(host.command, policy, folder), host.cpu)


def measured(server: Server, begun: float, end: float, requests: int) -> tuple[dict[str, Any], str]:
    """Return a server's start-up since *begun* (seconds of the epoch), the times of its requests, and its command.

    Raises NotStarted if it does not start by *end* (monotonic).
    """
    server.wait(end)
    seconds = []
    for number in range(requests):
        before = time.perf_counter()
        server.client.generate(prompt(number), **SAMPLED)
        seconds.append(time.perf_counter() - before)
    told = server.described()
    return {
        "ready_s": server.start_seconds,
        "parts_s": parts_of(server.log.read_text(errors="replace"), begun),
        "startup": (told["adaptive"] or {}).get("startup"),
        "sampled_requests_s": seconds,
    }, told["command"]


def parts_of(log: str, begun: float) -> dict[str, float]:
    """Return the seconds of each part of a start-up that began at *begun*, from the log's local times."""
    last, found, waiting = begun, dict.fromkeys(PARTS, 0.0), list(PARTS)
    for line in log.splitlines():
        part = next((part for part in waiting if PARTS[part] in line), None)
        stamp = part and _STAMP.search(line)
        if part and stamp:
            now = datetime.strptime(stamp[1], "%Y-%m-%d %H:%M:%S").timestamp()
            # A line that ends a later part also ends those before it: the first of these took all the time.
            found[waiting[0]] = now - last
            last, waiting = now, waiting[waiting.index(part) + 1 :]
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
