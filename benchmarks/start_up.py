"""Time how long a static and an adaptive server take to be ready, started together on the same GPU.

    python -m benchmarks.start_up --work DIR

The first turn is a fresh host: each server has its own home folder without compiled kernels. The second turn starts
both again with the same folders. The servers run without the benchmarks' plugin. For each server the result has the
seconds from its first process until it is ready and those of each part, the start-up report of /server_info, and the
seconds of ten sampled requests, sent one after the other.
"""

from __future__ import annotations

import re
import shutil
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
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
REQUESTS = 10

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
    parser.add_argument("--contenders", type=start.names, default=["static-3", "throughput"])
    parser.add_argument("--pair", default="llama8b", help="shape of target and draft")
    parser.add_argument("--batch", type=int, default=64, help="largest batch size with CUDA graphs")
    given = parser.parse_args(argv)
    end = start.begin(given)
    extra = given.server_arguments
    if given.host == "cpu":
        host = start.cpu(given.batch, extra=extra)
    else:
        host = start.gpu(given.models, given.batch, given.pair, extra=extra, prefill_graphs=True)
    report = Report(given.results / "start-up.json", "start_up", argv, schema=SCHEMA, servers={}, turns={})
    homes = {name: given.work / f"home-{name}" for name in given.contenders}
    for home in homes.values():
        shutil.rmtree(home, ignore_errors=True)
    failed = 0
    for turn in TURNS:
        report.content["turns"][turn] = {}
        servers = [
            _server(_at_home(policy, homes[policy.name]), host, given.work / turn)
            for policy in start.chosen(given.contenders)
        ]
        begun = time.time()
        for server in servers:
            server.launch()
        with ThreadPoolExecutor(len(servers)) as pool:
            waiting = {pool.submit(measured, server, begun, end): server for server in servers}
            for done in as_completed(waiting):
                name = waiting[done].name
                try:
                    report.content["turns"][turn][name], report.content["servers"][name] = done.result()
                except (NotStarted, RequestError, OSError) as problem:
                    failed += 1
                    report.note(f"{turn}, {name}: {problem}")
                report.write()
        start.stop_started()
    return int(failed > 0)


def _at_home(policy: Policy, home: Path) -> Policy:
    """Return the policy with every cache of compiled kernels below *home*."""
    folders = {"TRITON_CACHE_DIR": ".triton/cache", "TORCHINDUCTOR_CACHE_DIR": "inductor", "XDG_CACHE_HOME": ".cache"}
    return replace(policy, variables={"HOME": str(home), **{name: str(home / at) for name, at in folders.items()}})


def _server(policy: Policy, host: Host, folder: Path) -> Server:
    Path(policy.variables["HOME"]).mkdir(parents=True, exist_ok=True)
    return start.server_of(policy, folder, partial(host.command, policy, folder), host.cpu)


def measured(server: Server, begun: float, end: float) -> tuple[dict[str, Any], str]:
    """Return a server's start-up since *begun* (seconds of the epoch), the times of its requests, and its command.

    Raises NotStarted if it does not start by *end* (monotonic).
    """
    server.wait(end)
    seconds = []
    for number in range(REQUESTS):
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
