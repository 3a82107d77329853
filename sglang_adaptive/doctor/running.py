"""Checks of a running server, over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sglang_adaptive.client import Client
from sglang_adaptive.command_line import listed
from sglang_adaptive.doctor.installation import NOTE, OK, PROBLEM, Check
from sglang_adaptive.watch.view import DEGRADED, GONE, NOT_ADAPTIVE, read


def checks(client: Client) -> Iterator[Check]:
    """Yield the checks of the first replica of *client*'s server, and the problems of the others."""
    seen, *others = read(client)
    if seen["state"] == GONE:
        yield Check("server", PROBLEM, f"{client.url}: {seen['words']}")
        return
    yield Check("server", OK, f"{client.url} answers")
    if seen["attention_backend"] is not None:
        yield Check("attention backend", OK, f"{seen['attention_backend']} on {seen['device']}")
    if seen["state"] == NOT_ADAPTIVE:
        yield Check("adaptive speculation", PROBLEM, seen["words"])
        return
    yield _policy(seen)
    yield _rounds(seen["adaptive"])
    for alarm in seen["adaptive"]["alarms"]:
        yield Check(alarm["name"], PROBLEM, alarm["words"])
    if off := seen["adaptive"].get("off"):
        yield Check("features", NOTE, f"off: {', '.join(f'{name} ({reason})' for name, reason in off.items())}")
    for replica, other in enumerate(others, start=1):
        if other["state"] in (DEGRADED, NOT_ADAPTIVE):
            yield Check(f"replica {replica}", PROBLEM, other["words"])
        for alarm in other["adaptive"]["alarms"] if other["adaptive"] else ():
            yield Check(f"replica {replica}", PROBLEM, f"{alarm['name']}: {alarm['words']}")


def _policy(seen: dict[str, Any]) -> Check:
    if seen["state"] == DEGRADED:
        return Check("adaptive speculation", PROBLEM, seen["words"])
    state, held = seen["adaptive"], seen["adaptive"]["forced_steps"]
    words = f"policy {state['policy']}, depth {state['current_steps']} of {listed(state['tiers'])}"
    if held is not None:
        return Check("adaptive speculation", NOTE, f"{words}; an operator holds it at {held}")
    return Check("adaptive speculation", OK, words)


def _rounds(state: dict[str, Any]) -> Check:
    rounds, drafted, accepted = (sum(state[f"{what}_by_tier"].values()) for what in ("rounds", "drafted", "accepted"))
    if not rounds:
        return Check("rounds", NOTE, "no requests yet")
    kept = f", {accepted / drafted:.0%} of the drafts accepted" if drafted else ""
    return Check("rounds", OK, f"{rounds} rounds, {state['switches']} switches{kept}")
