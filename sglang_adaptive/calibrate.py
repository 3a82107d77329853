"""``sglang-adaptive calibrate``: measures a live server's round times into a cost profile.

One batch size and number of steps at a time, under a steady load.
"""

from __future__ import annotations

import argparse
import random
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any
from uuid import uuid4

from tqdm import tqdm

from sglang_adaptive.client import HOLD_SECONDS, AdaptiveServer, Client, NotReady, RequestError, most_running
from sglang_adaptive.command_line import (
    DONE,
    PROBLEM,
    CommandParser,
    Interrupted,
    StopSignals,
    add_server,
    count,
    failed,
    new_file,
)
from sglang_adaptive.explain import looked_up
from sglang_adaptive.policy.profile import CostProfile, ProfileCell, ProfileKey, ordered
from sglang_adaptive.runtime.profile_store import ProfileStore
from sglang_adaptive.sglang_plugin.start.profiles import folder

PROMPT_TOKENS = 128
VOCABULARY = 200
"""Prompts are drawn from token ids below this, which exist in every model."""


class SteadyLoad:
    """Keeps *requests* generations running, each ``max_new_tokens`` long and restarted when done.

    As a context manager, it aborts the requests in flight on exit. ``error`` is the first failure.
    """

    def __init__(self, client: Client, requests: int, max_new_tokens: int) -> None:
        self._client, self._max_new_tokens = client, max_new_tokens
        self._stop = threading.Event()
        self._running: set[str] = set()
        self._threads = [
            threading.Thread(target=self._keep_busy, args=(seed,), daemon=True) for seed in range(requests)
        ]
        self.error: Exception | None = None

    def __enter__(self) -> SteadyLoad:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        while any(thread.is_alive() for thread in self._threads):
            for rid in list(self._running):
                with suppress(RequestError, OSError):  # without a server its connections end on their own
                    self._client.abort(rid)
            for thread in self._threads:
                thread.join(0.05)

    def _keep_busy(self, seed: int) -> None:
        draw = random.Random(seed)
        while not self._stop.is_set() and self.error is None:
            rid = uuid4().hex
            self._running.add(rid)
            prompt = [draw.randrange(VOCABULARY) for _ in range(PROMPT_TOKENS)]
            try:
                self._client.generate(prompt, self._max_new_tokens, rid=rid, ignore_eos=True)
            except (RequestError, OSError) as error:
                if not self._stop.is_set():
                    self.error = error
            finally:
                self._running.discard(rid)


POLL_SECONDS = 0.1
PATIENCE_SECONDS = 120.0
SPARE_TOKENS = 128
"""KV slots that SGLang reserves per request beyond its text."""
LEAST_TOKENS = 64
"""Length of the shortest requests; shorter ones would spend most of the time in prefill."""


def room(info: Mapping[str, Any], batch_size: int) -> int:
    """Return how many tokens each of *batch_size* requests can generate in the server's KV cache; NotReady if too few.

    SGLang retracts requests that do not fit, so the batch would never keep its size.
    """
    slots = int(info["max_total_num_tokens"])
    tokens = slots // batch_size - PROMPT_TOKENS - SPARE_TOKENS
    if tokens < LEAST_TOKENS:
        raise NotReady(
            f"{batch_size} requests do not fit into the server's KV cache of {slots} tokens; expected at least "
            f"{batch_size * (LEAST_TOKENS + PROMPT_TOKENS + SPARE_TOKENS)}, or smaller --batch-sizes"
        )
    return tokens


def depths(state: Mapping[str, Any], batch_size: int) -> list[int]:
    """Return the steps that run at *batch_size* as they would in service.

    Steps have graphs only where the policy may choose them; otherwise they run in a larger graph or without one.
    """
    graphs = {tier["steps"]: tier["graph_batch_sizes"] for tier in state["startup"]["tiers"]}
    captured = sorted({size for sizes in graphs.values() for size in sizes or ()})
    padded = next((size for size in captured if size >= batch_size), None)
    drafted = sorted({*state["tiers"]} - {*looked_up(state)})
    return [steps for steps in drafted if padded is None or padded in (graphs[steps] or ())]


def _cell(server: AdaptiveServer, load: SteadyLoad, batch_size: int, steps: int, rounds: int, bar: tqdm) -> ProfileCell:
    """Return the time of a round at a batch size that *load* keeps, at *steps*, from *rounds*, which *bar* counts.

    Raises NotReady when the server stops answering or the batch size does not become steady.
    """
    bar.set_description(f"batch {batch_size}, {steps} steps")
    server.hold(steps)
    before, begun = _reading(server, batch_size, steps)[0], bar.n
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        server.renew()
        timed, seconds = _reading(server, batch_size, steps)
        bar.update(begun + min(timed - before, rounds) - bar.n)
        if timed - before >= rounds:
            return ProfileCell(batch_size, steps, seconds, timed - before)
        if load.error is not None:
            raise NotReady(f"a request of the load failed: {load.error}")
        if time.monotonic() > deadline:
            raise NotReady(
                f"only {timed - before} of {rounds} rounds ran at batch size {batch_size} in {PATIENCE_SECONDS:.0f} s: "
                "is the server serving others?"
            )
        time.sleep(POLL_SECONDS)


def _reading(server: AdaptiveServer, batch_size: int, steps: int) -> tuple[int, float]:
    """Return the rounds timed at this cell since the server started, and the median of the latest, in seconds."""
    for cell in server.refresh()["round_times"]:
        if (cell["batch_size"], cell["steps"]) == (batch_size, steps):
            return cell["rounds"], cell["seconds"]
    return 0, 0.0


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


def main(argv: Sequence[str]) -> int:
    """Run the command; returns 0, 1 if the server cannot be measured, 2 for bad usage. Raises Interrupted."""
    arguments = parser().parse_args(argv)
    try:
        with StopSignals():
            return _calibrate(arguments)
    except NotReady as error:
        return failed("calibrate", str(error), PROBLEM)
    except OSError as error:
        return failed("calibrate", f"{error.filename}: cannot be written ({error.strerror})", PROBLEM)


def _calibrate(arguments: argparse.Namespace) -> int:
    client = Client.from_url(arguments.url, api_key=arguments.api_key, admin_api_key=arguments.admin_api_key)
    server = AdaptiveServer(client)
    most = most_running(server.info)
    ladder = [size for size in (1, 2, 4, 8, 16, 32, 64) if not most or size <= most]
    sizes = arguments.batch_sizes or ladder
    if most is not None and max(sizes) > most:
        raise NotReady(f"--batch-sizes: got {max(sizes)}, but {client.url} runs {most} requests at once")
    profile, ended = _measure(server, sizes, arguments)
    print(table(profile))
    if arguments.output is not None:
        partial = arguments.output.with_name(arguments.output.name + ".part")  # so that the file is always whole
        partial.write_text(profile.dumps(), encoding="utf-8")
        partial.replace(arguments.output)
        print(f"wrote {arguments.output}", file=sys.stderr)
    else:  # to the cache of this machine's servers
        store = ProfileStore(profile.key, folder(None))
        if not store.save(profile):
            return failed("calibrate", f"the profile could not be kept in {store.folder}", PROBLEM)
        print(f"kept in {store.path}; a server with the same key starts from it", file=sys.stderr)
    return failed("calibrate", f"{ended}; what had been measured was kept", PROBLEM) if ended else DONE


def _measure(
    server: AdaptiveServer, sizes: Sequence[int], arguments: argparse.Namespace
) -> tuple[CostProfile, str | None]:
    """Return the measured cells, and why the measurement ended early, if it did.

    There is a cell for every batch size and all steps with a runtime state, and with graphs if the server uses any. The
    steps are held, so every cell has steady rounds at fixed steps. The previous hold is restored at the end, even after
    an error. Requests are shorter than ``--tokens`` if the KV cache cannot hold the batch otherwise.
    """
    tokens = {size: min(arguments.tokens, room(server.info, size)) for size in sizes}  # before anything is measured
    wanted = sum(len(depths(server.state, size)) for size in sizes) * arguments.rounds
    cells: list[ProfileCell] = []
    ended = None
    # disable=None: a bar on a terminal only
    with tqdm(total=wanted, unit="round", desc="starting the load", disable=None) as bar:
        try:
            try:
                for size in sizes:
                    with SteadyLoad(server.client, size, tokens[size]) as load:
                        for steps in depths(server.state, size):
                            cells.append(_cell(server, load, size, steps, arguments.rounds, bar))
            finally:
                server.put_back()
        except (NotReady, Interrupted) as reason:
            if not cells:
                raise
            ended = str(reason) if isinstance(reason, NotReady) else "interrupted"
    how = (
        "sglang-adaptive calibrate: median wall time between consecutive verify results at a forced depth, at zero "
        "steps of means over the rounds from one run of the draft's extend to the next, "
        f"prompts of {PROMPT_TOKENS} random tokens, policy {server.state['policy']}"
    )
    return CostProfile(ProfileKey(**server.state["profile_key"]), ordered(cells), how), ended


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
    add_server(parser, changes=True)
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
