"""Which steps can win at a batch size at all: the others need no graphs there.

Steps are kept when, for some acceptance between 0.05 and 0.95 that stays or falls from position to position, their rate
comes within a slack of the best. The slack grows with the doubt about their time, so hardly anything is dropped before
times were measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

ACCEPTANCES, FALLS = tuple(0.05 * k for k in range(1, 20)), (1.0, 0.95, 0.85)
SIGMAS, LEAST_SLACK = 2.0, 0.1
"""Standard deviations of slack, and its least (log): a draft's acceptance changes more than that."""


def contenders(ladder: Sequence[int], seconds: Sequence[float], deviation: Sequence[float]) -> tuple[int, ...]:
    """Return the steps of *ladder* that can win, ascending; its smallest always stay.

    *seconds* and *deviation* (relative) are by ladder index.
    """
    kept = {ladder[0]}
    for first in ACCEPTANCES:
        for fall in FALLS:
            tokens, survives = [1.0], 1.0
            for position in range(ladder[-1]):
                survives *= first * fall**position
                tokens.append(tokens[-1] + survives)
            rates = [tokens[steps] / t for steps, t in zip(ladder, seconds, strict=True)]
            slack = [math.exp(max(LEAST_SLACK, SIGMAS * doubt)) for doubt in deviation]
            kept.update(s for s, rate, more in zip(ladder, rates, slack, strict=True) if rate * more >= max(rates))
    return tuple(sorted(kept))
