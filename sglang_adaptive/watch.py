"""``sglang-adaptive watch``: reads a server at intervals, and shows each reading, of one data-parallel replica."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from http.client import HTTPException
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Column, Table
from rich.text import Text

from sglang_adaptive.client import Client, RequestError, in_words
from sglang_adaptive.command_line import (
    BAD_INPUT,
    DONE,
    INTERRUPTED,
    PROBLEM,
    CommandParser,
    add_server,
    failed,
    number,
)
from sglang_adaptive.explain import because, looked_up, slot_words

SERVING, IDLE, NOT_ADAPTIVE, DEGRADED, GONE = "serving", "idle", "not adaptive", "degraded", "gone"
HEALTHY = (SERVING, IDLE)


def read(client: Client) -> list[dict[str, Any]]:
    """Ask the server once; return the view of each replica, or one that says why there is none."""
    try:
        states = client.server_info()["internal_states"]
    except (RequestError, OSError, HTTPException) as error:
        return [view(client.url, GONE, in_words(error))]
    except (KeyError, TypeError):
        states = ()
    unlike = view(client.url, GONE, "it answers, but not like an SGLang server")
    return [view(client.url, *_in_words(state.get("adaptive")), state) for state in states] or [unlike]


def view(url: str, state: str, words: str, internal: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return a view; ``adaptive`` is this package's block of *internal* if speculation adapts."""
    found, block = internal or {}, (internal or {}).get("adaptive")
    return {
        "schema": 2,
        "time": time.time(),
        "url": url,
        "state": state,
        "words": words,
        "attention_backend": found.get("attention_backend"),
        "device": found.get("device"),
        "since_last": None,
        "adaptive": block if block and block["active"] else None,
    }


def _in_words(block: Mapping[str, Any] | None) -> tuple[str, str]:
    """Return the state of a replica with this *block*, and a sentence about it."""
    if block is None:
        return NOT_ADAPTIVE, "started without adaptive speculation"
    if not block["active"]:
        return NOT_ADAPTIVE, f"asked to adapt, but it cannot: {block['reason'] or 'its log says why'}"
    if block["degraded"]:
        held, reason = block["degraded_steps"], block["degraded_reason"]
        return DEGRADED, f"the policy was set aside; the steps stay at {held}: {reason}"
    forced = block["forced_steps"]
    return SERVING, "the policy decides" if forced is None else f"an operator holds the steps at {forced}"


def compared(before: Mapping[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """Return *now* with what passed since *before*, another view of the same replica."""
    old, new = before["adaptive"], now["adaptive"]
    if old is None or new is None:
        return now
    counts = [_grown(old[f"{what}_by_tier"], new[f"{what}_by_tier"]) for what in ("rounds", "accepted", "tokens")]
    rounds, accepted, tokens = (sum(grown.values()) for grown in counts)
    seconds = now["time"] - before["time"]
    if rounds < 0 or seconds <= 0:  # the server restarted, or the clock was set
        return now
    since = {
        "seconds": seconds,
        "rounds": rounds,
        "rounds_by_tier": counts[0],
        "tokens": tokens,
        "tokens_per_second": tokens / seconds,
        # Each request of a round also yields the target's own token.
        "accept_length": tokens / (tokens - accepted) if rounds else None,
    }
    idle = {"state": IDLE, "words": "no round since the last reading"} if not rounds and now["state"] == SERVING else {}
    return {**now, **idle, "since_last": since}


def _grown(old: Mapping[str, int], new: Mapping[str, int]) -> dict[str, int]:
    return {steps: more for steps, count in new.items() if (more := count - old.get(steps, 0))}


PATIENCE_SECONDS = 15.0
"""Limit in seconds of a request. A scheduler answers only between two rounds, so possibly after a long prefill."""
SWITCHES_SHOWN = 6


def parser() -> CommandParser:
    found = CommandParser(
        "watch",
        "Shows a server's speculation live: the steps, tokens per second and accept length since the last reading, "
        "acceptance by position, the expected speed of each number of steps, why the policy chose these, and the "
        "latest switches with their causes. Tells you when the server is idle, not adaptive, degraded or gone, and "
        "continues when it comes back. Ctrl-C ends it.\n\n"
        "If standard output is not a terminal, it writes one line per reading.",
        [
            ("--url http://127.0.0.1:30000", "on a terminal"),
            ("--url http://127.0.0.1:30000 --once", "one reading and an exit code: is the server healthy?"),
            ("--url http://127.0.0.1:30000 --once --json", "the same for a script"),
        ],
        "0 with --once: serving or idle; 1 with --once: not adaptive, degraded or gone; 2 bad usage; 130 Ctrl-C",
    )
    add_server(found)
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
    client = Client.from_url(arguments.url, api_key=arguments.api_key, timeout=PATIENCE_SECONDS)
    views = _views(client, arguments.replica, arguments.interval)
    # rich would use its own definition of a terminal, from FORCE_COLOR and the like.
    console = Console(highlight=False, force_terminal=sys.stdout.isatty())
    try:
        if arguments.once:
            seen = next(views)
            seen = next(views) if seen["adaptive"] else seen  # rates need a second reading
            print(json.dumps(seen, indent=1)) if arguments.json else console.print(screen(seen))
            return DONE if seen["state"] in HEALTHY else PROBLEM
        if console.is_terminal and not (console.is_dumb_terminal or arguments.json):
            with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
                for seen in views:
                    live.update(screen(seen), refresh=True)
        for seen in views:
            print(json.dumps(seen) if arguments.json else line(seen), flush=True)
    except IndexError as error:
        return failed("watch", f"--replica: {error}", BAD_INPUT)
    except KeyboardInterrupt:
        return INTERRUPTED
    return DONE


def _views(client: Client, replica: int, interval: float) -> Iterator[dict[str, Any]]:
    """Yield a view immediately and then one per *interval*; the first has no rates."""
    before: dict[str, Any] | None = None
    while True:
        found = read(client)
        if found[0]["state"] == GONE:
            yield found[0]
        elif not 0 <= replica < len(found):
            raise IndexError(f"got {replica}; the server has {len(found)}, counted from 0")
        else:
            yield compared(before or found[replica], found[replica])
            before = found[replica]
        time.sleep(interval)


def line(view: dict[str, Any]) -> str:
    """Return a reading on one line."""
    state, since = view["adaptive"], view["since_last"]
    told = f"{_clock(view['time'])}  {view['state']}: {view['words']}"
    told += f", steps {state['current_steps']}" if state else ""
    if since and since["rounds"]:
        told += f", {since['tokens_per_second']:.1f} tokens/s, accept length {since['accept_length']:.2f}"
    return told


def screen(view: dict[str, Any]) -> RenderableType:
    """Return one frame for rich."""
    state, rounds = view["adaptive"], (view["since_last"] or {"rounds_by_tier": {}})["rounds_by_tier"]
    head = Text(f"{view['url']}\n{line(view)}")
    head.highlight_words([view["state"]], f"bold {'green' if view['state'] in HEALTHY else 'red'}")
    if state is None:
        return head
    accepted = [
        # Given the draft before it: the policy's estimate, or else the counts so far.
        entry["probability"] if "probability" in entry else entry["accepted"] / (entry["reached"] or 1)
        for entry in state.get("acceptance", state["accepted_by_position"])
    ]
    facts = [("policy", state["policy"]), ("acceptance by position", "  ".join(f"{share:.0%}" for share in accepted))]
    facts += [("alarm", f"{alarm['name']}: {alarm['words']}") for alarm in state["alarms"]]
    facts += [("why", state["why"]["words"])] if "why" in state else []
    facts += [("slot", told) for slot in state.get("slots", ()) for told in slot_words(slot)]
    table = Table.grid(padding=(0, 2))
    for name, fact in facts:
        table.add_row(Text(name, "dim"), fact)
    count = f"Latest of {state['switches']} switches" if state["switches"] else "It has not switched yet."
    latest = [
        f"{_clock(switch['time'])}  {switch['from_steps']} -> {switch['to_steps']}: {because(switch)}"
        for switch in state["recent_switches"][: -SWITCHES_SHOWN - 1 : -1]
    ]
    return Group(head, "", table, _by_steps(state, rounds), count, *latest)


def _by_steps(state: dict[str, Any], rounds: dict[str, int]) -> Table:
    rates, lookups = {rate["steps"]: rate for rate in state.get("rates", ())}, looked_up(state)
    gains = {one["steps"]: one for one in (state.get("speedup") or {"against": ()})["against"]}
    names = ["steps", "rounds\nnow", "accept\nlength"]
    names += ["expected\ntokens/s", "gain over\nthese steps"] if rates else []
    table, total = Table(*(Column(name, justify="right") for name in names), box=SIMPLE_HEAD), sum(rounds.values()) or 1
    for steps in state["tiers"]:
        live, rate, gain = steps == state["current_steps"], rates.get(steps), gains.get(steps)
        tokens, accepted = (state[f"{what}_by_tier"].get(str(steps), 0) for what in ("tokens", "accepted"))
        cells = [f"{'> ' if live else ''}{steps}", f"{rounds.get(str(steps), 0) / total:.0%}"]
        cells.append(f"{tokens / (tokens - accepted):.2f}" if tokens else "-")
        if rates:
            speed = f"{rate['tokens_per_second']:.1f}" if rate and rate["allowed"] else "not used now"
            cells.append("looked up" if steps in lookups else speed)
            cells.append(f"{gain['times']:.2f} +/- {2 * gain['deviation']:.2f}" if gain else "-")
        table.add_row(*cells, style="bold" if live else "")
    return table


def _clock(moment: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(moment))
