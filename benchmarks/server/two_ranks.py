"""Tensor parallelism over two GPUs: do both ranks run every round at the same depth, also when one's clock lies?

    python -m benchmarks.server.two_ranks --output RESULT.json --work FOLDER [--rounds 5000]

Two servers with the throughput policy and simulated acceptance that keeps changing, as does the number of requests:
one after the other, or side by side with --together. On the second one rank 1 reads a round of n steps as 1 + 3 n
times as fast as it was. A plugin logs the depth of each round on each rank. Ranks that disagree would run different
collectives and hang.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.server import hosts
from benchmarks.server.load import ClosedLoop
from benchmarks.server.policies import POLICIES
from benchmarks.server.process import Declared
from benchmarks.server.results import SIMULATED, origin
from benchmarks.server.servers import Server
from tests.engine.fault import write_liar_plugin

PLUGIN = "adaptive_fault"
CLOCKS = {"honest": 0, "rank 1's clock lies": 3}
ACCEPTANCE = (0.9, 0.3, 0.7, 0.05)
CONCURRENCY = (1, 8, 32, 4, 16, 2)
PHASE_ROUNDS = 150
HUNG_SECONDS = 60.0
REQUEST_TOKENS = 400


def main() -> int:
    """Run both servers and write what their ranks did; 1 when a rank ran another depth or a server hung."""
    options = _parser().parse_args()
    runs: list[dict[str, Any]] = []
    about = {"acceptance": SIMULATED, "provenance": origin(sys.argv[1:], "benchmarks.server.two_ranks")}
    with ThreadPoolExecutor(len(CLOCKS)) as pool:
        each = pool.map if options.together else map  # one after the other in this thread, which an interrupt reaches
        for found in each(partial(_tried, options), CLOCKS):
            runs.append(found)
            print(json.dumps(found), flush=True)
            options.output.write_text(json.dumps({**about, "runs": runs}, indent=1))
    return 0 if all(one.get("identical") for one in runs) else 1


def _tried(options: argparse.Namespace, clocks: str) -> dict[str, Any]:
    lie = CLOCKS[clocks]
    try:
        return {"clocks": clocks, **run(options, options.work / f"lie-{lie}", lie)}
    except Exception as error:  # the other server is still worth its time
        return {"clocks": clocks, "failed": f"{type(error).__name__}: {error}"}


def run(options: argparse.Namespace, folder: Path, lie: int) -> dict[str, Any]:
    """Serve *options.rounds* rounds and compare the ranks' logs."""
    folder.mkdir(parents=True)
    log = folder / "depths-of-rank-"
    plugins = write_liar_plugin(folder / "plugin-of-ranks", str(log), lie)
    extra = ("--tp-size", "2", *options.server_arguments.split())
    if options.host == "gpu":
        more = {"kv_tokens": options.kv_tokens, "strict_loads": options.strict_loads}
        host: hosts.Host = hosts.gpu(options.models, 64, extra=extra, **more)
    else:
        host = hosts.cpu(64, extra=extra)
    server = Server(POLICIES["throughput"], host, folder, folder / "profiles")
    names = [*server.environment["SGLANG_PLUGINS"].split(","), PLUGIN]
    paths = [server.environment.get("PYTHONPATH", ""), str(plugins)]
    server.environment |= {"SGLANG_PLUGINS": ",".join(names), "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    server.launch()
    try:
        server.wait(time.monotonic() + options.start_timeout)
        begin = time.monotonic()
        _drive(server, Path(f"{log}0"), options.rounds)
        found = compare(*(_lines(Path(f"{log}{rank}")) for rank in (0, 1)))
        state = server.adaptive() or {}
    finally:
        server.stop()
    served = {"seconds": time.monotonic() - begin, "start_seconds": server.start_seconds}
    return {**found, **served, "degraded": state.get("degraded")}


def compare(first: list[str], second: list[str]) -> dict[str, Any]:
    """Compare two ranks' "batch size, depth" lines; one may be a round ahead when they are read."""
    both = min(len(first), len(second))
    unlike = next((row for row in range(both) if first[row] != second[row]), None)
    depths = [line.split()[1] for line in first]
    return {
        "rounds": both,
        "identical": unlike is None and abs(len(first) - len(second)) <= 1,
        "first_unlike": None if unlike is None else {"round": unlike, "ranks": [first[unlike], second[unlike]]},
        "switches": sum(one != other for one, other in pairwise(depths)),
        "rounds_by_depth": dict(sorted(Counter(depths).items(), key=lambda item: int(item[0]))),
    }


def _drive(server: Server, log: Path, rounds: int) -> None:
    begun = len(_lines(log))
    with ClosedLoop(server.client, CONCURRENCY[0], REQUEST_TOKENS) as loop:
        phase = 0
        while (done := len(_lines(log)) - begun) < rounds:
            server.process.declared = Declared(ACCEPTANCE[phase % len(ACCEPTANCE)])
            loop.resize(CONCURRENCY[phase % len(CONCURRENCY)])
            _until(log, begun + done + PHASE_ROUNDS, server)
            phase += 1
    if loop.errors:
        raise RuntimeError(f"{len(loop.errors)} requests failed: {loop.errors[0]}")
    time.sleep(1.0)  # both ranks end their last rounds


def _until(log: Path, lines: int, server: Server) -> None:
    last, at = -1, time.monotonic()
    while (now := len(_lines(log))) < lines:
        if now != last:
            last, at = now, time.monotonic()
        if time.monotonic() - at > HUNG_SECONDS:
            raise RuntimeError(f"no round for {HUNG_SECONDS:.0f} s after {now}:\n{server.log_tail(5)}")
        time.sleep(0.05)


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.server.two_ranks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True, help="a folder that is not there yet, for logs")
    parser.add_argument("--rounds", type=int, default=5000)
    parser.add_argument("--host", choices=("gpu", "cpu"), default="gpu")
    parser.add_argument("--models", type=Path, default=Path("/tmp/m"))
    parser.add_argument("--together", action="store_true", help="both servers at once")
    parser.add_argument("--kv-tokens", type=int, default=100_000, help="KV cache of each server (gpu)")
    parser.add_argument("--server-arguments", default="", help="more arguments for both servers, in one string")
    parser.add_argument("--start-timeout", type=float, default=280.0, metavar="SECONDS")
    parser.add_argument("--strict-loads", action="store_true", help="a kernel that loads while serving ends a server")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
