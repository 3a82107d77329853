"""Two successive readings of a server, and one JSON object of the values to display."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any

from sglang_adaptive.calibrate.explain import because, ladder, looked_up
from sglang_adaptive.client import Client, RequestError, in_words

# One reading of a server: its internal state, or why there is none.


@dataclass(frozen=True, slots=True)
class Reading:
    """A server's answer and its time."""

    at: float
    """Seconds on a monotonic clock."""

    time: float
    """Unix time in seconds."""

    internal: dict[str, Any] | None = None
    """SGLang's internal state of one replica; None if the server did not return it."""

    problem: str | None = None
    """Why ``internal`` is None."""

    @property
    def adaptive(self) -> dict[str, Any] | None:
        """This package's block, if speculation is adaptive."""
        block = (self.internal or {}).get("adaptive")
        return block if block and block["active"] else None

    @property
    def inactive_reason(self) -> str | None:
        """Why a server that should adapt does not; None for other servers."""
        block = (self.internal or {}).get("adaptive")
        return None if block is None else block["reason"] or "its log says why"


def read_all(client: Client, clock: Callable[[], float] = time.monotonic) -> list[Reading]:
    """Ask the server once; return a reading of each data-parallel replica, or one with the problem."""
    try:
        states = client.server_info()["internal_states"]
    except (RequestError, OSError, HTTPException) as error:
        return [Reading(clock(), time.time(), problem=in_words(error))]
    except (KeyError, TypeError):
        states = ()
    unlike = Reading(clock(), time.time(), problem="it answers, but not like an SGLang server")
    return [Reading(clock(), time.time(), state) for state in states] or [unlike]


def read(client: Client, replica: int, clock: Callable[[], float] = time.monotonic) -> Reading:
    """Ask the server once. Raises IndexError when it has no such data-parallel *replica*."""
    found = read_all(client, clock)
    if found[0].problem is not None:
        return found[0]
    if not 0 <= replica < len(found):
        raise IndexError(f"got {replica}; the server has {len(found)}, counted from 0")
    return found[replica]


# Formats the speedup of the last hour; assets/worth.js does the same for the page.


def worth(state: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the speedups over no speculation and over the launch steps; None without a cost model.

    *state* is the ``adaptive`` part of a server's state. Keys: ``words``, ``seconds`` from the first to the last
    counted round, and ``no_speculation`` (if zero steps have a runtime state) and ``launch_depth``, each with ``times``
    and ``deviation``.
    """
    speedup = state.get("speedup")
    if speedup is None:
        return None
    by_steps = {one["steps"]: {"times": one["times"], "deviation": one["deviation"]} for one in speedup["against"]}
    launch = state["launch_steps"]
    told = {"no_speculation": by_steps.get(0), "launch_depth": by_steps.get(launch) if launch else None}
    names = {"no_speculation": "no speculation", "launch_depth": f"a fixed {launch} step{'' if launch == 1 else 's'}"}
    parts = [f"{_times(one)} times {names[name]}" for name, one in told.items() if one is not None]
    words = f"{', '.join(parts)}, over the last {_span(speedup['seconds'])}" if parts else None
    return {"words": words, "seconds": speedup["seconds"], **told}


def _times(one: Mapping[str, float]) -> str:
    # Two standard deviations; the server reports an upper bound.
    doubt = 2.0 * one["deviation"]
    decimals = 2 if doubt < 0.095 else 1  # a second decimal only if it is significant
    return f"{one['times']:.{decimals}f} (± {doubt:.{decimals}f})"


def _span(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} seconds"
    return "hour" if seconds >= 3540 else f"{seconds / 60:.0f} minutes"


SCHEMA = 1
SERVING, IDLE, NOT_ADAPTIVE, DEGRADED, GONE = "serving", "idle", "not adaptive", "degraded", "gone"
HEALTHY = (SERVING, IDLE)


def view(url: str, before: Reading | None, now: Reading) -> dict[str, Any]:
    """Return the view of *now*; rates and counts cover the time since *before*."""
    base = {"schema": SCHEMA, "time": now.time, "url": url}
    if now.internal is None:
        return {**base, "state": GONE, "words": now.problem}
    state = now.adaptive
    if state is None:
        reason = now.inactive_reason
        words = f"asked to adapt, but it cannot: {reason}" if reason else "started without adaptive speculation"
        return {**base, "state": NOT_ADAPTIVE, "words": words}
    earlier = before.adaptive if before is not None else None
    if earlier is not None and sum(earlier["rounds_by_tier"].values()) > sum(state["rounds_by_tier"].values()):
        earlier = None  # the server restarted
    passed = _passed(earlier, state, now.at - before.at) if earlier is not None and before is not None else None
    name, words = _state(state, passed)
    return {
        **base,
        "state": name,
        "words": words,
        "policy": state["policy"],
        "depth": state["current_steps"],
        "depths": state["tiers"],
        "launch_depth": state["launch_steps"],
        "forced_depth": state["forced_steps"],
        "worth": worth(state),
        "since_last": passed,
        "by_depth": _by_depth(state, passed),
        "acceptance": _acceptance(state),
        "batch_size": state.get("batch_size"),
        "why": state["why"]["words"] if "why" in state else None,
        "slots": state.get("slots", []),
        "switches": state["switches"],
        "recent_switches": [{**switch, "words": because(switch)} for switch in state["recent_switches"]],
    }


def _state(state: dict[str, Any], passed: dict[str, Any] | None) -> tuple[str, str]:
    if state["degraded"]:
        held = state["degraded_steps"]
        return DEGRADED, f"the policy was set aside; the depth stays at {held}: {state['degraded_reason']}"
    if passed is not None and passed["rounds"] == 0:
        return IDLE, "no round since the last reading"
    forced = state["forced_steps"]
    return SERVING, "the policy decides" if forced is None else f"an operator holds the depth at {forced}"


def _passed(earlier: dict[str, Any], state: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Return rounds, tokens and their rate between two states *seconds* apart."""
    rounds = _grown(earlier, state, "rounds_by_tier")
    drafted = sum(_grown(earlier, state, "drafted_by_tier").values())
    accepted = sum(_grown(earlier, state, "accepted_by_tier").values())
    tokens = sum(_grown(earlier, state, "tokens_by_tier").values())
    verified = tokens - accepted  # each request of a round also yields the target's own token
    return {
        "seconds": seconds,
        "rounds": sum(rounds.values()),
        "rounds_by_depth": rounds,
        "tokens": tokens,
        "tokens_per_second": tokens / seconds if seconds > 0 else 0.0,
        "accept_length": tokens / verified if verified else None,
        "accepted_share": accepted / drafted if drafted else None,
    }


def _grown(earlier: dict[str, Any], state: dict[str, Any], key: str) -> dict[str, int]:
    """Return the increase of the counts under *key*, by steps, without zeros."""
    grown = {depth: count - earlier[key].get(depth, 0) for depth, count in state[key].items()}
    return {depth: count for depth, count in grown.items() if count}


def _acceptance(state: dict[str, Any]) -> list[dict[str, Any]]:
    """Return acceptance by position: the policy's estimate, or else the counts so far."""
    if "acceptance" in state:
        return [{key: entry[key] for key in ("position", "probability")} for entry in state["acceptance"]]
    return [
        {"position": entry["position"], "probability": entry["accepted"] / entry["reached"]}
        for entry in state["accepted_by_position"]
        if entry["reached"]
    ]


def _by_depth(state: dict[str, Any], passed: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Return for each number of steps its share of the rounds, its accept length, and its expected rate if known."""
    rates, may_run = {rate["steps"]: rate for rate in state.get("rates", ())}, ladder(state)
    lookups = looked_up(state)
    seconds_of = state["lookup_rounds"]["seconds"] if lookups else {}
    recent = passed["rounds_by_depth"] if passed is not None else {}
    total = sum(recent.values())
    found = []
    for depth in state["tiers"]:
        tokens, accepted = (state[f"{what}_by_tier"].get(str(depth), 0) for what in ("tokens", "accepted"))
        rate = rates.get(depth)
        seconds = rate["seconds"] if rate else seconds_of.get(str(depth))
        found.append(
            {
                "depth": depth,
                "live": depth == state["current_steps"],
                "share_of_rounds": recent.get(str(depth), 0) / total if total else None,
                "rounds": state["rounds_by_tier"].get(str(depth), 0),
                "accept_length": tokens / (tokens - accepted) if tokens else None,
                "expected_tokens_per_second": rate["tokens_per_second"] if rate else None,
                "round_milliseconds": None if seconds is None else 1000.0 * seconds,
                "round_time_is": rate["source"] if rate else "looked up" if depth in lookups else None,
                "allowed": rate["allowed"] if rate else depth in may_run or str(depth) in seconds_of,
            }
        )
    return found
