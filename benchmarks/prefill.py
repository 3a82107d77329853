"""Measure prompts with and without chunks where the draft computes only keys and values. See benchmarks/README.md.

    python -m benchmarks.prefill [--backends fa3] [--lengths 8192,32768,130048]

Two servers read the same prompts in turn, of the 8B shape with dummy weights; no prompt token is cached.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace

from benchmarks.harness import load, start
from benchmarks.harness.results import SIMULATED, Report, command_parser
from benchmarks.harness.start import Host, Policy, Server
from benchmarks.harness.turns import Pass, Race, over
from sglang_adaptive.sglang_plugin import env

CONFIG = {"policy": "throughput", "throughput": {"candidate_steps": [0, 1, 3, 7]}, "warm_up": False}
SHORT = Policy("short", config=CONFIG, ours=True)
WHOLE = replace(SHORT, name="whole", variables={env.OFF: "short-prefill"})


def main(argv: Sequence[str]) -> int:
    """Measure each backend; returns 0, or 1 if something failed."""
    given = parser().parse_args(argv)
    end = start.begin(given)
    on = given.backends if given.host == "gpu" else ["cpu"]
    report = Report(given.results / f"{'-'.join(on)}.json", "prefill", argv, acceptance=SIMULATED)
    with report.noting("ended early"):
        for backend in on:
            prefill(given, backend, report, end)
            start.stop_started()
    return int(bool(report.content["notes"]))


def prefill(given: argparse.Namespace, backend: str, report: Report, end: float) -> None:
    """Let two servers read the same prompts in turn."""
    host, folder = _host(given, backend), given.work / backend
    servers = start.start_all([WHOLE, SHORT], lambda one: start.policy_server(one, host, folder), end)

    def read(server: Server, length: int, number: int) -> Pass:
        server.client.flush_cache()
        begun = time.perf_counter()
        server.client.generate([load.prompt(number, length)], 1, ignore_eos=True)
        seconds = time.perf_counter() - begun
        return {"rate": length / seconds, "seconds": seconds}

    for server in servers:  # load kernels
        read(server, max(given.lengths), -1)
    race = Race(
        lambda length, number: servers, given.lengths, read, report, end=end - 15, error=given.error, ours="short"
    )
    report.content[f"prompts {backend}"] = {str(length): turns for length, turns in race.turns.items()}
    race.run()
    for length, turns in race.turns.items():
        report.say(f"{length} tokens: short over whole {over(turns, 'whole', 'short')}")
    report.add(**{f"servers {backend}": {server.name: server.described() for server in servers}})


def _host(given: argparse.Namespace, backend: str) -> Host:
    """Return the host for servers of the 8B shape or of the tiny pair."""
    on_cpu = given.host == "cpu"
    extra = ["--chunked-prefill-size", "256" if on_cpu else "8192", *given.server_arguments]
    if on_cpu:
        return start.cpu(1, prefix_cache=True, extra=extra)
    extra += ["--attention-backend", backend]
    return start.gpu(given.models, 1, prefix_cache=True, kv_tokens=max(given.lengths) + 1024, extra=extra)


def parser() -> argparse.ArgumentParser:
    found = command_parser("prefill", __doc__)
    start.add_options(found, 560.0)
    add = found.add_argument
    add("--backends", type=start.names, default=["fa3"], help="SGLang's attention backends (default: fa3)")
    add("--lengths", type=start.ints, default=[8192, 32768, 130048], help="tokens per prompt")
    add("--error", type=float, default=0.002, help="stop early at this relative standard error")
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
