"""``python -m benchmarks.served``: real text on live servers. See benchmarks/served/README.md.

start SCENE    start all servers of smollm2 or replay together, and leave them running
drive PHASE    greedy, sampled, poisson, equal, host-time (smollm2) or replay: drive them, write one JSON file
stop SCENE     stop them
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from benchmarks.served.contenders import SCENES, SMOLLM2, TIMED, Place, start, stop
from benchmarks.served.phases import PHASES, Asked, scene_of


def main(argv: Sequence[str]) -> int:
    """Run one subcommand; returns 0, or 1 when something failed."""
    given = _parser().parse_args(argv)
    signal.signal(signal.SIGTERM, _end)
    signal.signal(signal.SIGALRM, _end)
    begin = time.monotonic()
    scene = scene_of(given.phase) if given.verb == "drive" else given.scene
    place = Place(scene, given.host, given.models, given.work, given.batch, given.kv_tokens, _extra(given), given.pair)
    if given.verb == "stop":
        stop(place)
        return 0
    if given.verb == "start":
        names = given.contenders or [*SCENES[scene], *([TIMED] if scene == SMOLLM2 else [])]
        return 1 if start(place, names, begin + given.budget) else 0
    signal.alarm(int(given.budget * 1.15) + 20)  # whatever hangs: the command before this one's limit ends it
    try:
        PHASES[given.phase](_asked(given, place, argv))
    except Exception:
        traceback.print_exc()
        return 1
    finally:
        print(f"{given.phase}: {time.monotonic() - begin:.0f} s", flush=True)
    return 0


def _asked(given: argparse.Namespace, place: Place, argv: Sequence[str]) -> Asked:
    return Asked(
        place, given.results or given.work / "results", given.name or given.phase, given.budget, tuple(given.batches),
        dict(given.requests), given.tokens, given.error, tuple(given.contenders), tuple(given.depths),
        tuple(given.pairs), given.context,
        given.rate, tuple(argv),
    )  # fmt: skip


def _extra(given: argparse.Namespace) -> tuple[str, ...]:
    return tuple(given.server_arguments.split())


def _end(number: int, frame: object) -> NoReturn:
    raise SystemExit(128 + number)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.served", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb in ("start", "stop", "drive"):
        one = verbs.add_parser(verb)
        one.add_argument(
            *(("phase",) if verb == "drive" else ("scene",)), choices=PHASES if verb == "drive" else SCENES
        )
        add = one.add_argument
        add("--host", choices=("gpu", "cpu"), default="gpu")
        add("--models", type=Path, default=Path("/tmp/m"), help="holds smollm2/{target,draft}, llama8b, llama8b-eagle3")
        add("--work", type=Path, required=True, help="folder of logs, of what finds the servers again, and of results")
        add("--budget", type=float, default=300.0, metavar="SECONDS", help="for the whole command")
        add("--contenders", type=_words, default=[], help="some of the servers; default: all of the scene")
        add("--batch", type=int, default=64, help="most requests at a time that servers are started for")
        add("--kv-tokens", type=int, default=150_000, help="KV cache of each server (gpu)")
        add("--pair", default="llama8b", help="shapes of the replay (benchmarks/server/shapes.py)")
        add("--server-arguments", default="", help="more arguments for every server, in one string")
        if verb == "drive":
            add("--results", type=Path, help="folder of the JSON; default: WORK/results")
            add("--name", help="of the JSON; default: the phase")
            add("--batches", type=_ints, default=[1, 4, 16, 64])
            add(
                "--requests", type=_pairs, default=_pairs("1:6,4:16,16:64,64:192"), help="of a pass, BATCH:REQUESTS,..."
            )
            add("--tokens", type=int, default=192, help="new tokens of a request; of the replay the most")
            add("--error", type=float, default=0.01, help="relative standard error to reach before the time is over")
            add("--depths", type=_ints, default=[], help="held in turn on our server")
            add("--pairs", type=_pairs, default=[], help="STEPS:BUDGET,... held in turn on throughput-budgets (replay)")
            add("--context", type=int, default=1000, help="tokens of a prompt (replay)")
            add("--rate", type=float, help="requests a second (poisson); default: half of none's at batch 16")
    return parser


def _ints(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _words(text: str) -> list[str]:
    return text.split(",")


def _pairs(text: str) -> list[tuple[int, int]]:
    return [(int(left), int(right)) for left, right in (part.split(":") for part in text.split(","))]


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
