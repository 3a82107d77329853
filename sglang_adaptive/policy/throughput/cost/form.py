"""The parametric round time, for where nothing was measured.

    T(n, s) = a + b * s + c * n * (s + 1)        n requests, s draft steps

A round pays a fixed part, each draft step runs the draft model once, and verification grows with the tokens that go
through the target. The ratios are a least-squares fit to a table measured on an H200 (Llama-3.1-8B shape, EAGLE-3,
relative error 4% in the mean, 12% at worst). The scale is a guess that no decision depends on.
"""

from __future__ import annotations

FIXED = 0.005
"""Seconds of the fixed part."""
PER_STEP, PER_TOKEN = 0.037, 0.00276
"""Shares of the fixed part for a draft step and for a token to verify."""


def form_seconds(batch_size: int, steps: int) -> float:
    """Return the seconds of a round of *batch_size* requests at *steps*."""
    return FIXED * (1.0 + PER_STEP * steps + PER_TOKEN * batch_size * (steps + 1))
