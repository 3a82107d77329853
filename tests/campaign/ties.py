"""How close two tokens must be for rounding to decide between them, in the number formats of a campaign."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sglang_adaptive import ties
from sglang_adaptive.client import Client
from tests.campaign import gpu

NAME = "a tie"
BFLOAT16 = 0.5
"""Nats between two tokens of a tie on a GPU: the largest gap of SmolLM2 on an H200 from batch size alone."""
FLOAT32 = ties.FLOOR
"""The same on the CPU engine. A prompt of random tokens hit a gap of 6e-6 within an hour (in float64, alone)."""


def is_tie(plain: Client, body: Mapping[str, Any], ours: Any) -> bool:
    """Return whether the first differing token of the answer *ours* is nearly a tie without speculation."""
    return ties.is_tie(plain, body, ours, BFLOAT16 if gpu.used else FLOAT32)
