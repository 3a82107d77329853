"""``sglang-adaptive calibrate``: measure a live server's round times into a cost profile."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from tqdm import tqdm

from sglang_adaptive.adaptive_server import HOLD_SECONDS, AdaptiveServer, NotReady, most_running
from sglang_adaptive.calibrate.measure import check_sizes, depths, measure, room
from sglang_adaptive.client import Client
from sglang_adaptive.command_line import (
    DONE,
    PROBLEM,
    CommandParser,
    add_admin_api_key,
    add_server,
    count,
    failed,
    new_file,
)
from sglang_adaptive.policy.profile import CostProfile, ProfileCell, ProfileKey, ordered
from sglang_adaptive.runtime.profile_store import ProfileStore
from sglang_adaptive.sglang_plugin.start.profiles import folder
from sglang_adaptive.signals import Interrupted, StopSignals


def write(profile: CostProfile, path: Path) -> None:
    """Write the profile's JSON atomically."""
    partial = path.with_name(path.name + ".part")
    partial.write_text(profile.dumps(), encoding="utf-8")
    partial.replace(path)


def table(profile: CostProfile) -> str:
    """Return milliseconds per round, batch sizes down and steps across, as aligned text; "-" if not measured."""
    steps = sorted({cell.steps for cell in profile.cells})
    shown = {(cell.batch_size, cell.steps): f"{1000 * cell.seconds:.2f}" for cell in profile.cells}
    head = "ms per round " + "".join(f"{f'{s} steps':>10}" for s in steps)
    rows = [
        f"batch {batch:<7}" + "".join(f"{shown.get((batch, s), '-'):>10}" for s in steps)
        for batch in sorted({cell.batch_size for cell in profile.cells})
    ]
    return "\n".join([f"{profile.key.target_model} on {profile.key.gpu_name}", head, *rows])


DEFAULT_MAX_BATCH = 64


def main(argv: Sequence[str]) -> int:
    """Run the command; returns 0, 1 if the server cannot be measured, 2 for bad usage, 128 plus a signal's number."""
    arguments = parser().parse_args(argv)
    try:
        with StopSignals():
            return _calibrate(arguments)
    except NotReady as error:
        return failed("calibrate", str(error), PROBLEM)
    except OSError as error:
        return failed("calibrate", f"{error.filename}: cannot be written ({error.strerror})", PROBLEM)
    except Interrupted as stop:
        print("interrupted", file=sys.stderr)
        return stop.exit_code


def _calibrate(arguments: argparse.Namespace) -> int:
    client = Client.from_url(arguments.url, api_key=arguments.api_key, admin_api_key=arguments.admin_api_key)
    server = AdaptiveServer(client)
    sizes = arguments.batch_sizes or _ladder(server)
    check_sizes(server.info, sizes, client.url)
    profile, ended = _measure(server, sizes, arguments)
    print(table(profile))
    kept = _keep(profile, arguments)
    return failed("calibrate", f"{ended}; what had been measured was kept", PROBLEM) if ended and not kept else kept


def _keep(profile: CostProfile, arguments: argparse.Namespace) -> int:
    """Write the profile to a file or to the cache of this machine's servers."""
    if arguments.output is not None:
        write(profile, arguments.output)
        print(f"wrote {arguments.output}", file=sys.stderr)
    else:
        store = ProfileStore(profile.key, folder(None))
        if not store.save(profile):
            return failed("calibrate", f"the profile could not be kept in {store.folder}", PROBLEM)
        print(f"kept in {store.path}; a server with the same key starts from it", file=sys.stderr)
    return DONE


def _measure(
    server: AdaptiveServer, sizes: Sequence[int], arguments: argparse.Namespace
) -> tuple[CostProfile, str | None]:
    """Return the measured cells, and why the measurement ended early, if it did."""
    for size in sizes:
        room(server.info, size)  # before anything is measured
    wanted = sum(len(depths(server.state, size)) for size in sizes) * arguments.rounds
    cells: list[ProfileCell] = []
    # disable=None: a bar on a terminal only
    with tqdm(total=wanted, unit="round", desc="starting the load", disable=None) as bar:

        def show(batch_size: int, steps: int, done: int, rounds: int) -> None:
            bar.set_description(f"batch {batch_size}, {steps} steps", refresh=not done)
            bar.update(len(cells) * rounds + done - bar.n)

        ended = None
        try:
            with closing(measure(server, sizes, arguments.rounds, arguments.tokens, show)) as measured:
                for cell in measured:
                    cells.append(cell)
        except (NotReady, Interrupted) as reason:
            if not cells:
                raise
            ended = str(reason) if isinstance(reason, NotReady) else "interrupted"
    return CostProfile(ProfileKey(**server.state["profile_key"]), ordered(cells), _how(server)), ended


def _how(server: AdaptiveServer) -> str:
    return (
        "sglang-adaptive calibrate: median wall time between consecutive verify results at a forced depth, at zero "
        "steps of means over the rounds from one run of the draft's extend to the next, "
        f"prompts of 128 random tokens, policy {server.state['policy']}"
    )


def _ladder(server: AdaptiveServer) -> list[int]:
    """Return 1, 2, 4, ... up to the requests that the server runs at once, at most DEFAULT_MAX_BATCH."""
    most = most_running(server.info) or DEFAULT_MAX_BATCH
    return [size for size in (1, 2, 4, 8, 16, 32, 64) if size <= min(most, DEFAULT_MAX_BATCH)]


def parser() -> CommandParser:
    parser = CommandParser(
        "calibrate",
        "Forces each depth of a live adaptive server at several batch sizes, times the rounds, and writes a cost "
        "profile, which the throughput policy starts from. Run it while nothing else uses the server. At the end, or "
        f"{HOLD_SECONDS:.0f} seconds after a kill -9, the server returns to the depth that was held before, or to the "
        "policy's choice.",
        [
            ("--url http://127.0.0.1:30000", "for the next servers on this machine with the same models and versions"),
            ("--url http://127.0.0.1:30000 --batch-sizes 1,2 --output mine.json",
             "as a file, only two batch sizes"),
        ],
        "0 done; 1 the server could not be measured, or only in part (that part is kept); 2 bad usage",
    )  # fmt: skip
    add_server(parser, url=None)
    add_admin_api_key(parser)
    parser.add_argument(
        "--output",
        type=new_file,
        metavar="FILE",
        help="write the profile to this file (default: to the cache that servers read)",
    )
    parser.add_argument(
        "--batch-sizes", type=_sizes, metavar="N,N,...", help="default: powers of 2 up to the server's maximum, <= 64"
    )
    numbers = (("--rounds", 40, "rounds timed per cell"), ("--tokens", 1024, "maximum tokens per request"))
    for flag, default, meaning in numbers:
        parser.add_argument(flag, type=count, default=default, metavar="N", help=f"{meaning} (default %(default)s)")
    return parser


def _sizes(text: str) -> list[int]:
    return sorted({count(part) for part in text.split(",")})
