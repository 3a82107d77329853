"""Describes the cause of a switch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_CAUSES = {
    "acceptance": "what was accepted asked for it",
    "batch size": "the batch became {batch_size}",
    "probe": "a probe looked at another depth, or ended",
    "capacity": "a context or the KV cache is nearly full, or was",
    "forced": "an operator forced it",
    "released": "an operator released it",
    "degraded": "the policy failed",
    "configuration": "the configuration was changed",
}


def because(switch: Mapping[str, Any]) -> str:
    """Return the cause of a record of ``recent_switches`` in words; an unknown cause as it is."""
    return _CAUSES.get(switch["cause"], switch["cause"]).format(batch_size=switch["batch_size"])
