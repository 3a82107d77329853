"""Run the audit inside a healthy server and count its findings. See benchmarks/README.md.

    python -m benchmarks.audit_hour [--minutes 60] [--rate 0.15] [--share 1.0]

The tiny pair generates real text on the CPU engine. Requests arrive at random and use greedy decoding, with all kinds
of penalties, biases and minimum lengths. The throughput policy with lookups chooses the depths. Every verdict of the
audit is counted; a wrong token makes the exit code 1.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import load, start
from benchmarks.harness.results import REAL, Report, command_parser
from benchmarks.harness.start import Policy, Server
from sglang_adaptive.lab.cpu_engine import models
from sglang_adaptive.sglang_plugin.stages.audit_scheduler import VERDICTS

CONFIG: dict[str, Any] = {"policy": "throughput", "throughput": {"lookup": True}}
MOST = 8
"""Maximum requests that decode at the same time."""
MINUTE = 60.0


def main(argv: Sequence[str]) -> int:
    """Serve for the given time; return 1 if something failed or a token was wrong."""
    given = parser().parse_args(argv)
    given.budget = given.minutes * MINUTE + 300.0
    end = start.begin(given)
    report = Report(given.results / "audit-hour.json", "audit_hour", argv, acceptance=REAL)
    policy = Policy("ours", config={**CONFIG, "audit": {"share": given.share, "when": "idle"}}, ours=True)
    with report.noting("ended early"):
        host = start.cpu(MOST)
        found = start.start_all(
            [policy], lambda one: start.policy_server(one, host, given.work / "audit", simulate=False), end
        )
        if not found:
            raise RuntimeError("the server did not start")
        _serve(given, found[0], report)
    return int(bool(report.content["notes"]))


def _serve(given: argparse.Namespace, server: Server, report: Report) -> None:
    draw, begin, minute = random.Random(given.seed), time.monotonic(), 0
    report.add(plan={"minutes": given.minutes, "rate": given.rate, "share": given.share}, server=server.described())
    asked = 0
    while time.monotonic() < begin + given.minutes * MINUTE:
        times = load.arrival_times(given.rate, MINUTE, given.seed * 1000 + minute, least=1)
        load.at_times(server.client, times, [_request(draw) for _ in times])
        minute, asked = minute + 1, asked + len(times)
        state = server.states()[0]
        audit = state["audit"]
        report.add(
            seconds=time.monotonic() - begin, requests=asked, audit=audit, degraded=state["degraded"],
            rounds_by_tier=state["rounds_by_tier"],
        )  # fmt: skip
        report.say(f"{asked} requests, " + ", ".join(f"{audit[verdict]} {verdict}" for verdict in VERDICTS))
        if audit["wrong"] or state["degraded"]:
            raise RuntimeError(str(state["degraded_reason"]))


def _request(draw: random.Random) -> load.Body:
    """Return a random greedy request of a kind that the audit accepts."""
    how: dict[str, Any] = {"temperature": 0, "max_new_tokens": draw.randint(4, 96), "ignore_eos": draw.random() < 0.5}
    for name, least, most in (("frequency_penalty", 0.1, 2.0), ("repetition_penalty", 1.05, 1.5)):
        if draw.random() < 0.2:
            how[name] = draw.uniform(least, most)
    if draw.random() < 0.2:
        how["min_new_tokens"] = draw.randint(1, how["max_new_tokens"])
    if draw.random() < 0.2:
        how["logit_bias"] = {str(draw.randrange(64, 120)): draw.choice((-100, -2, 3))}
    kind = draw.choice(("easy", "hard"))
    return {"text": draw.choice(models.prompts(kind)), "sampling_params": how}


def parser() -> argparse.ArgumentParser:
    found = command_parser("audit_hour", __doc__)
    found.add_argument("--minutes", type=float, default=60.0)
    found.add_argument("--rate", type=float, default=0.15, help="requests per second")
    found.add_argument("--share", type=float, default=1.0, help="share of finished requests to decode again")
    found.add_argument("--seed", type=int, default=1)
    found.add_argument("--work", type=Path, default=Path("/tmp/benchmarks/audit"))
    found.add_argument("--results", type=Path)
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
