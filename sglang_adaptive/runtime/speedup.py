"""The speedup of adaptive speculation: the time of its rounds against the modeled time of fixed steps.

The rounds yielded k tokens in t seconds. With s fixed steps the same tokens would have taken

    t(s) = t * T(b, s) / T(b, d) * k / k(s)

where d are the drafted steps, T is the cost model's round time at batch size b, and k(s) are the tokens that as many
rounds of s steps would have yielded: up to d steps from accepted drafts, beyond from the policy's expectation. The
measured time is scaled by a ratio of modeled times, so a disturbance of a round affects both sides. At s = d they are
equal. The speedup over s is the sum of t(s) over the sum of t.

The deviation follows from those of T(b, s), T(b, d) and the expected tokens. An error of a cell is the same in every
round, so the deviations are averaged as if they were fully correlated: an upper bound on the standard deviation.
Neither side includes prefill, queueing and switches. For a lookup round, k(s) assumes that drafts are accepted where
lookups were, so the speedup is a lower bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from sglang_adaptive.policy.base import RoundPrices
from sglang_adaptive.runtime.counters import RoundMix


@dataclass(frozen=True, slots=True)
class FixedDepth:
    """The modeled time of some rounds at fixed steps."""

    steps: int
    seconds: float
    deviation: float
    """Standard deviation of ``seconds``, in seconds."""


def own_seconds(mix: RoundMix, prices: RoundPrices) -> float | None:
    """Return the modeled seconds of a round like those of *mix*; None without a modeled time."""
    return prices.seconds.get(mix.steps, prices.lookups.get(mix.steps))


def at_fixed_depths(mix: RoundMix, prices: RoundPrices) -> Iterator[FixedDepth]:
    """Yield the time of *mix*'s tokens at all steps with a modeled round time; nothing if its own steps have none.

    *prices* are for the mix's batch size and steps.
    """
    own = own_seconds(mix, prices)
    if own is None or not mix.requests:
        return
    taken, tokens = mix.seconds(own), mix.tokens
    for steps, seconds in prices.seconds.items():
        fixed = taken * seconds / own * tokens / mix.tokens_at(steps, prices.tokens)
        yield FixedDepth(steps, fixed, fixed * _doubt(prices, mix.steps, steps))


def _doubt(prices: RoundPrices, drafted: int, steps: int) -> float:
    """Return the relative standard deviation of the time that rounds of *drafted* steps would have taken at *steps*."""
    if steps == drafted:
        return 0.0
    tokens = prices.tokens_deviation.get(steps, 0.0) if steps > drafted else 0.0
    own = prices.deviation.get(drafted, prices.deviation[steps])  # lookup rounds have none
    return math.sqrt(prices.deviation[steps] ** 2 + own**2 + tokens**2)
