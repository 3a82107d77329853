"""Which depths can win at a batch size at all: the others need no graphs there.

A depth is kept when, for some acceptance between 0.05 and 0.95 that stays or falls from position to position, its
rate comes within a slack of the best. The slack grows with the doubt about its time, so hardly anything is dropped
before times were measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

ACCEPTANCES = tuple(0.05 * k for k in range(1, 20))
FALLS = (1.0, 0.95, 0.85)
SIGMAS, LEAST_SLACK = 2.0, 0.1


def contenders(ladder: Sequence[int], seconds: Sequence[float], deviation: Sequence[float]) -> tuple[int, ...]:
    """Return the depths of *ladder* that can win, ascending; its shallowest one always stays.

    *seconds* and *deviation* (relative) are by ladder index.
    """
    kept = {ladder[0]}
    for first in ACCEPTANCES:
        for fall in FALLS:
            tokens = _expected_tokens(first, fall, ladder[-1])
            rates = [tokens[steps] / t for steps, t in zip(ladder, seconds, strict=True)]
            best = max(rates)
            kept.update(
                steps
                for steps, rate, doubt in zip(ladder, rates, deviation, strict=True)
                if rate * math.exp(max(LEAST_SLACK, SIGMAS * doubt)) >= best
            )
    return tuple(sorted(kept))


def _expected_tokens(first: float, fall: float, depth: int) -> list[float]:
    tokens, survives, h = [1.0], 1.0, first
    for _ in range(depth):
        survives *= h
        tokens.append(tokens[-1] + survives)
        h *= fall
    return tokens
