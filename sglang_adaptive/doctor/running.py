"""Checks of a running server, over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sglang_adaptive.client import Client
from sglang_adaptive.command_line import listed
from sglang_adaptive.doctor.check import NOTE, OK, PROBLEM, Check
from sglang_adaptive.watch.view import DEGRADED, GONE, NOT_ADAPTIVE, Reading, read_all, view


def checks(client: Client) -> Iterator[Check]:
    """Yield the checks of the first replica of *client*'s server, and of others that do not adapt."""
    now, *others = read_all(client)
    seen = view(client.url, None, now)
    if seen["state"] == GONE:
        yield Check("server", PROBLEM, f"{client.url}: {seen['words']}")
        return
    yield Check("server", OK, f"{client.url} answers")
    if now.internal is not None and now.internal.get("attention_backend") is not None:
        yield Check("attention backend", OK, f"{now.internal['attention_backend']} on {now.internal.get('device')}")
    if seen["state"] == NOT_ADAPTIVE:
        yield Check("adaptive speculation", PROBLEM, seen["words"])
        return
    yield _policy(seen)
    yield from _rounds(seen, now)
    for replica, other in enumerate(others, start=1):
        state = view(client.url, None, other)
        if state["state"] in (DEGRADED, NOT_ADAPTIVE):
            yield Check(f"replica {replica}", PROBLEM, state["words"])


def _policy(seen: dict[str, Any]) -> Check:
    if seen["state"] == DEGRADED:
        return Check("adaptive speculation", PROBLEM, seen["words"])
    words = f"policy {seen['policy']}, depth {seen['depth']} of {listed(seen['depths'])}"
    if seen["forced_depth"] is not None:
        return Check("adaptive speculation", NOTE, f"{words}; an operator holds it at {seen['forced_depth']}")
    return Check("adaptive speculation", OK, words)


def _rounds(seen: dict[str, Any], now: Reading) -> Iterator[Check]:
    rounds = sum(depth["rounds"] for depth in seen["by_depth"])
    if not rounds:
        yield Check("rounds", NOTE, "no requests yet")
        return
    assert now.adaptive is not None, "by_depth comes from it"
    drafted, accepted = (sum(now.adaptive[f"{what}_by_tier"].values()) for what in ("drafted", "accepted"))
    kept = f", {accepted / drafted:.0%} of the drafts accepted" if drafted else ""
    yield Check("rounds", OK, f"{rounds} rounds, {seen['switches']} switches{kept}")
