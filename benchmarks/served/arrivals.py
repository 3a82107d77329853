"""Poisson arrivals: what a reader waits for, with every contender, on the same requests at the same times."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from benchmarks.served.loop import Make
from benchmarks.served.report import Report
from benchmarks.server import load
from benchmarks.server.load import Answer
from benchmarks.server.numbers import percentiles
from benchmarks.server.servers import Running

SECONDS = 8.0
"""Of arrivals in a turn; the last answers come a little later."""

GROUPS = 8
"""Requests that follow each other wait together, so a turn's requests count as this many samples."""

STREAM_INTERVAL = 8
"""Tokens of a part of the answer: a part a token would keep the client busy, and the server's front end."""


def arrivals(servers: Sequence[Running], rate: float, make: Make, report: Report, end: float) -> None:
    """Let every server answer the same arrivals, in turn, until no turn would end by *end*."""
    turns: list[dict[str, Any]] = []
    report.content["turns"] = turns
    longest = 0.0
    while not turns or time.monotonic() + longest < end:
        begin = time.monotonic()
        passes: dict[str, Any] = {}
        turns.append({"passes": passes})
        for server in servers[:: 1 if len(turns) % 2 else -1]:
            try:
                passes[server.name] = one_pass(server, rate, make, len(turns))
            except Exception as problem:
                report.note(f"turn {len(turns)}, {server.name}: {type(problem).__name__}: {problem}")
            report.write()
        longest = time.monotonic() - begin


def one_pass(server: Running, rate: float, make: Make, seed: int) -> dict[str, Any]:
    """Return the latencies of one server; *seed* gives the times, and which questions come."""
    times = times_of(rate, SECONDS, seed)
    bodies = []
    for number in range(len(times)):
        body = make(number + 97 * seed, 0)
        sampling = {**body["sampling_params"], "stream_interval": STREAM_INTERVAL}
        bodies.append({**body, "sampling_params": sampling, "stream": True, "rid": f"{server.name}-{seed}-{number}"})
    answers = load.at_times(server.client, times, bodies)
    good = [answer for answer in answers if answer.failed is None]
    if len(good) < len(answers):
        raise RuntimeError(f"{len(answers) - len(good)} of {len(answers)} requests failed")
    found = figures(good)
    latency = found["latency"]
    print(f"  {server.name}: latency p50 {latency['p50_ms']:.0f} p95 {latency['p95_ms']:.0f} ms", flush=True)
    return found


def times_of(rate: float, seconds: float, seed: int) -> list[float]:
    """Return when requests arrive: exponential gaps, *rate* a second, for *seconds*; at least one a group."""
    draw = random.Random(seed)
    times = [draw.expovariate(rate)]
    while times[-1] < seconds or len(times) < GROUPS:
        times.append(times[-1] + draw.expovariate(rate))
    return times


def figures(answers: Sequence[Answer]) -> dict[str, Any]:
    """Return percentiles, and the mean latency in ms of each of GROUPS parts, in the order of arrival."""
    latencies = [answer.latency for answer in answers]
    size = len(latencies) / GROUPS
    parts = [latencies[round(index * size) : round((index + 1) * size)] for index in range(GROUPS)]
    return {
        "requests": len(answers),
        "first_token": percentiles([answer.time_to_first_token for answer in answers]),
        "latency": percentiles(latencies),
        "group_ms": [1000 * fmean(part) for part in parts],
    }
