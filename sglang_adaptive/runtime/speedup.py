"""What adaptive speculation is worth: the time of its rounds beside that of a fixed depth.

The rounds yielded k tokens in t seconds. At a fixed depth s the same tokens would have taken

    t(s) = t * T(b, s) / T(b, d) * k / k(s)

where d is the depth that was drafted, T the cost model's round time at batch size b, and k(s) the tokens that as many
rounds of depth s would have yielded: up to d what was accepted, beyond it what the policy expects. The time is scaled
by a ratio of two modelled times, not replaced by one, so that what disturbs a round disturbs both sides. At s = d the
two are equal. The speedup over s is the sum of t(s) over the sum of t.

How sure that is comes from the deviations of T(b, s), T(b, d) and the expected tokens. A cell that is wrong is wrong in
every round, so their deviations are averaged over the rounds as if all went wrong together: the result is an upper
bound on the standard deviation. Prefill, queueing and switches are in neither side.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sglang_adaptive.policy.telemetry import RoundPrices
from sglang_adaptive.runtime.round_mix import RoundMix


@dataclass(frozen=True, slots=True)
class FixedDepth:
    """What some rounds would have taken at a fixed depth."""

    steps: int
    seconds: float
    deviation: float
    """Standard deviation of ``seconds``, in seconds."""


def at_fixed_depths(mix: RoundMix, prices: RoundPrices) -> Iterator[FixedDepth]:
    """Yield what the tokens of *mix* would have taken at every depth that has a price; nothing without one of its own.

    *prices* are those of the mix's batch size, for rounds of its depth.
    """
    own = prices.seconds.get(mix.steps)
    if own is None or not mix.requests:
        return
    taken, tokens = mix.seconds(own), mix.tokens
    for steps, seconds in prices.seconds.items():
        fixed = taken * seconds / own * tokens / mix.tokens_at(steps, prices.tokens)
        yield FixedDepth(steps, fixed, fixed * _doubt(prices, mix.steps, steps))


def _doubt(prices: RoundPrices, drafted: int, steps: int) -> float:
    """Return the relative standard deviation of what rounds of *drafted* steps would have taken at *steps*."""
    if steps == drafted:
        return 0.0
    tokens = prices.tokens_deviation.get(steps, 0.0) if steps > drafted else 0.0
    return math.sqrt(prices.deviation[steps] ** 2 + prices.deviation[drafted] ** 2 + tokens**2)


@dataclass(slots=True)
class Speedup:
    """Sums over rounds, for one fixed depth."""

    steps: int
    taken: float = 0.0
    """Seconds of the rounds that this depth could be priced for."""

    fixed: float = 0.0
    """Seconds of the same at this depth."""

    doubt: float = 0.0
    """Standard deviation of ``fixed`` at most, in seconds."""

    def as_dict(self) -> dict[str, Any]:
        """Return the speedup and its standard deviation as JSON builtins."""
        return {"steps": self.steps, "times": self.fixed / self.taken, "deviation": self.doubt / self.taken}
