"""python -m benchmarks.attention_dp.served --output DIR --work DIR: attention DP on two GPUs, all phases in a budget.

equality    greedy text at every depth, switching, by policy, on ranks loaded unlike, against no speculation
agreement   5,000 rounds under changing load, one rank's clock lying: the same steps on both in every round
rates       tokens a second of the policy, of each number of steps, and without speculation

Each phase writes DIR/PHASE.json whenever it has learnt something. An error ends its phase alone.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.attention_dp.served import phases
from benchmarks.attention_dp.served.report import Report
from benchmarks.attention_dp.served.servers import SMALL, Place


def main(argv: list[str]) -> int:
    """Run the phases; 1 when one of them failed, or found texts or ranks that differ."""
    given = _parser().parse_args(argv)
    begin = time.monotonic()
    place = Place(given.work.resolve(), given.host == "cpu", given.pair, given.layers)
    report = Report(given.output.resolve(), argv, begin)
    run = phases.Phases(place, report, given, begin + given.budget)

    def end(number: int, frame: object) -> None:
        place.stop()
        os._exit(128 + number)

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGALRM, end)
    signal.alarm(int(given.budget) + 30)  # whatever hangs: what was measured is written
    wanted = [name for name in phases.NAMES if name in given.phases]
    place.start(*(server for name in wanted for server in phases.SERVERS[name]))
    try:
        if place.cpu:
            for name in wanted:
                _tried(run, name)
        else:
            # Texts and agreement need no quiet GPU; rates do.
            _together(run, [name for name in wanted if name != "rates"])
            for name in wanted:
                if name == "rates":
                    _tried(run, name)
    finally:
        place.stop()
    report.say(f"done: {report.summary()}")
    return int(not report.is_well())


def _together(run: phases.Phases, names: list[str]) -> None:
    threads = [threading.Thread(target=_tried, args=(run, name)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _tried(run: phases.Phases, name: str) -> None:
    phase: Callable[[], None] = getattr(run, name)
    begin = time.monotonic()
    run.report.say(f"{name}: begins")
    try:
        phase()
    except Exception as error:  # the other phases are still worth their time
        traceback.print_exc()
        run.report.add(name, error=f"{type(error).__name__}: {error}"[:2000])
    run.report.add(name, seconds=round(time.monotonic() - begin, 1))
    run.report.say(f"{name}: ends")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.attention_dp.served",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add: Any = parser.add_argument
    add("--output", type=Path, required=True, help="folder of the JSON files")
    add("--work", type=Path, required=True, help="folder of models, configurations and logs")
    add("--budget", type=float, default=560.0, metavar="SECONDS", help="for everything, start-up included")
    add("--phases", type=lambda text: text.split(","), default=list(phases.NAMES), help="some of them, with commas")
    add("--host", choices=("gpu", "cpu"), default="gpu", help="cpu rehearses on the CPU engine, one server at a time")
    add("--pair", choices=tuple(SMALL), default="qwen3-moe", help="the small shape whose texts are compared")
    add("--layers", type=int, help="of the large shape; default: all 48")
    add("--rounds", type=int, default=5000, help="of the agreement")
    add("--window", type=float, default=1.2, metavar="SECONDS", help="a rate is measured for, twice")
    add("--scenes", type=int, default=99, help="the first so many scenes of the rates")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
