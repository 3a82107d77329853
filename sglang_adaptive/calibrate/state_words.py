"""What the ``adaptive`` block of a server's state means: the cause of a switch, and which depths may run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sglang_adaptive.policy.throughput.lookups import DRAFTS

_CAUSES = {
    "acceptance": "what was accepted asked for it",
    "batch size": "the batch became {batch_size}",
    "probe": "a probe looked at another depth, or ended",
    "lookup": "text began to be copied, or no longer was",
    "capacity": "a context or the KV cache is nearly full, or was",
    "forced": "an operator forced it",
    "released": "an operator released it",
    "degraded": "the policy failed, or the audit found a wrong token",
    "audit": "finished requests were decoded again",
    "configuration": "the configuration was changed",
}


def because(switch: Mapping[str, Any]) -> str:
    """Return the cause of a record of ``recent_switches`` in words; an unknown cause as it is."""
    return _CAUSES.get(switch["cause"], switch["cause"]).format(batch_size=switch["batch_size"])


def looked_up(state: Mapping[str, Any]) -> list[int]:
    """Return the drafts of rounds that are looked up in each request's own text, where the server has such rounds."""
    return [] if state.get("lookup_rounds") is None else [steps for steps in state["tiers"] if steps in DRAFTS]


def ladder(state: Mapping[str, Any]) -> list[int]:
    """Return the depths that the configuration in force may choose, ascending.

    A server keeps every depth that it built, so a later configuration may leave some out; an operator may still hold
    them. All of them are returned for a policy that does not tell its own.
    """
    told = {rate["steps"] for rate in state.get("rates", ())}
    told.update(steps for slot in state.get("slots", ()) for steps in slot["candidate_steps"])
    return sorted(told) or list(state["tiers"])
