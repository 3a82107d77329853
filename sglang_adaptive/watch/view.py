"""What a server answered, as one JSON object per data-parallel replica."""

from __future__ import annotations

import time
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any

from sglang_adaptive.client import Client, RequestError, in_words

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
