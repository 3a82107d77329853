"""What more steps bring if every position is accepted with one probability."""

from __future__ import annotations

from bisect import bisect_right

_GRID = 64


class Geometric:
    """E[tokens | high] / E[tokens | low] as a function of E[tokens | low], for one acceptance p at all positions."""

    def __init__(self, low: int, high: int) -> None:
        chances = [index / _GRID for index in range(_GRID + 1)]
        self._tokens = [_tokens(p, low) for p in chances]
        self._ratios = [_tokens(p, high) / _tokens(p, low) for p in chances]

    def ratio(self, tokens: float) -> float:
        at = min(max(1, bisect_right(self._tokens, tokens)), _GRID)
        low, high = self._tokens[at - 1], self._tokens[at]
        part = min(1.0, max(0.0, (tokens - low) / (high - low)))
        return self._ratios[at - 1] + part * (self._ratios[at] - self._ratios[at - 1])


def _tokens(p: float, steps: int) -> float:
    return sum(p**position for position in range(steps + 1))
