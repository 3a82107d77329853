"""Run the same greedy requests on running servers in turn, with depths held, until the ratio of their rates is known.

    python -m benchmarks.in_turn --server before=http://HOST:PORT --server now=http://HOST:PORT \\
        --depths 0,3 --batches 1,16 --output RESULT.json

At a fixed depth, greedy servers of one model write the same text in the same rounds, so the ratio of rates is the ratio
of round times. To compare two commits, start each server with one commit's installation first on PYTHONPATH.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import load
from benchmarks.harness.results import Report, command_parser
from benchmarks.harness.start import ints, named
from benchmarks.harness.turns import Pass, Race, over
from sglang_adaptive.client import Client, RequestError

Case = tuple[int, int]
"""The held depth, and the batch size."""


@dataclass(frozen=True)
class Running:
    """A running server."""

    name: str
    url: str

    def hold(self, steps: int | None) -> None:
        """Hold *steps* on it; None releases them, which a server without this package need not support."""
        try:
            Client.from_url(self.url).force_steps(steps)
        except (OSError, RequestError) as problem:
            if steps is not None:
                raise RuntimeError(f"{self.name}: {problem}") from None


def main(argv: Sequence[str]) -> int:
    """Race the servers; returns 0, or 1 if a pass failed."""
    given = parser().parse_args(argv)
    end = time.monotonic() + given.budget
    servers = [Running(*one) for one in given.server]
    last = servers[-1].name
    report = Report(given.output, "in_turn", argv, schema="in-turn-1", requests=given.requests, tokens=given.tokens)

    def serve(one: Running, case: Case, number: int) -> Pass:
        steps, size = case

        def make(request: int, place: int) -> load.Body:
            asked = load.prompt(1000 * number + request)
            return {"input_ids": asked, "sampling_params": load.greedy(given.tokens)}

        one.hold(steps)
        done = load.run_list(one.url, given.requests * size, size, make)
        return {"rate": done.tokens / done.seconds, "tokens": done.tokens, "seconds": done.seconds}

    cases = [(steps, size) for steps in given.depths for size in given.batches]
    race = Race(
        lambda case, number: servers, cases, serve, report, end=end, error=given.error, ours=last,
        told=lambda case: f"{case[0]} steps, batch {case[1]}",
    )  # fmt: skip
    report.content["cases"] = [
        {"steps": steps, "batch_size": size, "turns": race.turns[steps, size]} for steps, size in cases
    ]
    try:
        race.run()
    finally:
        for one in servers:
            one.hold(None)
    report.content["ratios"] = _ratios(race, [one.name for one in servers[:-1]], last)
    for line in report.content["ratios"]:
        report.say(f"{line['steps']} steps, batch {line['batch_size']}: {last} over {line['over']} {line['ratio']}")
    report.write()
    return int(bool(report.content["notes"]))


def _ratios(race: Race, others: Sequence[str], last: str) -> list[dict[str, Any]]:
    found = ((case, other, over(turns, other, last)) for case, turns in race.turns.items() for other in others)
    return [
        {"steps": case[0], "batch_size": case[1], "over": other, "ratio": str(one)}
        for case, other, one in found
        if one is not None
    ]


def parser() -> argparse.ArgumentParser:
    made = command_parser("in_turn", __doc__)
    add = made.add_argument
    add(
        "--server",
        action="append",
        required=True,
        metavar="NAME=URL",
        type=named,
        help="ratios: the last server over each other",
    )
    add("--depths", type=ints, default=[0, 3])
    add("--batches", type=ints, default=[1, 16])
    add("--requests", type=int, default=2, help="requests per pass, as a multiple of the batch size")
    add("--tokens", type=int, default=192)
    add("--error", type=float, default=0.004, help="stop early at this relative standard error")
    add("--budget", type=float, default=120.0, help="seconds")
    add("--output", type=Path, required=True)
    return made


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
