"""``sglang-adaptive watch``: parses, and reads the server at intervals."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from sglang_adaptive.client import Client
from sglang_adaptive.command_line import (
    BAD_INPUT,
    DONE,
    INTERRUPTED,
    PROBLEM,
    CommandParser,
    add_server,
    failed,
    has_colour,
    number,
    port_number,
)
from sglang_adaptive.watch.lines import Lines
from sglang_adaptive.watch.view import HEALTHY, read, view

READINGS_KEPT = 60
PATIENCE_SECONDS = 15.0
"""Limit in seconds of a request. A scheduler answers only between two rounds, so possibly after a long prefill."""


def parser() -> CommandParser:
    found = CommandParser(
        "watch",
        "Shows a server's speculation live: the depth, tokens per second and accept length since the last reading, "
        "acceptance by position, the expected speed of each depth, and the latest switches with their causes. Tells "
        "you when the server is idle, not adaptive, degraded or gone, and continues when it comes back. Ctrl-C ends "
        "it.\n\n"
        "If standard output is not a terminal, it writes one line per reading and one per switch.",
        [
            ("--url http://127.0.0.1:30000", "on a terminal"),
            ("--url http://127.0.0.1:30000 --once", "one reading and an exit code: is the server healthy?"),
            ("--url http://127.0.0.1:30000 --once --json", "the same for a script"),
        ],
        "0 with --once: serving or idle; 1 with --once: not adaptive, degraded or gone; 2 bad usage; 130 Ctrl-C",
    )
    add_server(found)
    found.add_argument("--host", metavar="HOST", help="instead of --url: the server's host (default: 127.0.0.1)")
    found.add_argument(
        "--port", type=port_number, metavar="N", help="instead of --url: the server's port (default: 30000)"
    )
    seconds = number("seconds", 0.1, 3600)
    found.add_argument(
        "--interval", type=seconds, default=1.0, metavar="S", help="seconds between readings (default: %(default)g)"
    )
    found.add_argument(
        "--replica", type=int, default=0, metavar="N", help="data-parallel replica, from 0 (default: %(default)s)"
    )
    found.add_argument("--once", action="store_true", help="show one interval, then exit")
    found.add_argument("--json", action="store_true", help="print each reading as JSON, one object per line")
    return found


def main(argv: Sequence[str]) -> int:
    """Run the command; returns the exit code."""
    arguments = parser().parse_args(argv)
    try:
        client = Client.from_url(_url(arguments), api_key=arguments.api_key, timeout=PATIENCE_SECONDS)
    except ValueError as error:
        return failed("watch", f"{'--url' if arguments.host is None else '--host'}: {error}", BAD_INPUT)
    views = _views(client, arguments.replica, arguments.interval)
    try:
        if arguments.once:
            return _once(views, arguments.json)
        _follow(views, arguments.json)
    except IndexError as error:
        return failed("watch", f"--replica: {error}", BAD_INPUT)
    except KeyboardInterrupt:
        return INTERRUPTED
    return DONE


def _views(client: Client, replica: int, interval: float) -> Iterator[dict[str, Any]]:
    """Yield a view immediately and then one per *interval*; the first has no rates."""
    before = None
    while True:
        now = read(client, replica)
        yield view(client.url, before, now)
        before = now if now.internal is not None else before
        time.sleep(interval)


def _once(views: Iterator[dict[str, Any]], as_json: bool) -> int:
    seen = next(views)
    if "depth" in seen:  # rates need a second reading
        seen = next(views)
    if as_json:
        print(json.dumps(seen, indent=1))
    else:
        from sglang_adaptive.watch.screen import Marks, screen

        console = _console()
        console.print(screen(seen, [], Marks.of(console.encoding, console.width)))
    return DONE if seen["state"] in HEALTHY else PROBLEM


def _follow(views: Iterator[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        for seen in views:
            print(json.dumps(seen), flush=True)
    elif sys.stdout.isatty():
        _live(views)
    else:
        lines = Lines()
        for seen in views:
            for line in lines.of(seen):
                print(line, flush=True)


def _live(views: Iterator[dict[str, Any]]) -> None:
    from rich.live import Live

    from sglang_adaptive.watch.screen import Marks, screen

    console = _console()
    history: deque[dict[str, Any]] = deque(maxlen=READINGS_KEPT)
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        for seen in views:
            history.append(seen)
            live.update(screen(seen, history, Marks.of(console.encoding, console.width)), refresh=True)


def _console() -> Any:
    from rich.console import Console

    # rich would use its own definition of a terminal, from FORCE_COLOR and the like.
    return Console(no_color=not has_colour(sys.stdout), highlight=False, force_terminal=sys.stdout.isatty())


def _url(arguments: argparse.Namespace) -> str:
    if arguments.host is None and arguments.port is None:
        return str(arguments.url)
    host = arguments.host or "127.0.0.1"
    return f"http://{f'[{host}]' if ':' in host else host}:{30000 if arguments.port is None else arguments.port}"
