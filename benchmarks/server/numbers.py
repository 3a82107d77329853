"""The arithmetic of the figures: percentiles, spread, ratios."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, geometric_mean
from typing import TypeVar

Case = TypeVar("Case")


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the value below which *percent* of *values* lie, linear between neighbours.

    Raises ValueError without values.
    """
    if not values:
        raise ValueError("a percentile of no values")
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def percentiles(seconds: Sequence[float]) -> dict[str, float] | None:
    """Return p50, p95, p99 and the mean in milliseconds, with the number of values; None without any."""
    if not seconds:
        return None
    named = {f"p{percent}_ms": 1000 * percentile(seconds, percent) for percent in (50, 95, 99)}
    return {**named, "mean_ms": 1000 * fmean(seconds), "count": len(seconds)}


def spread(values: Sequence[float]) -> float:
    """Return (largest - smallest) / mean: 0 for a single value."""
    return (max(values) - min(values)) / fmean(values) if values else 0.0


def shares(rates: Mapping[Case, float], reference: Mapping[Case, float]) -> list[float]:
    """Return rate over reference for every case that both have."""
    return [rates[case] / reference[case] for case in rates if case in reference]


def best_of(rates: Sequence[Mapping[Case, float]]) -> dict[Case, float]:
    """Return the highest rate of each case."""
    best: dict[Case, float] = {}
    for one in rates:
        for case, rate in one.items():
            best[case] = max(rate, best.get(case, 0.0))
    return best


def summed_up(values: Sequence[float]) -> tuple[float, float]:
    """Return the geometric mean and the smallest of *values*. Raises ValueError without any."""
    if not values:
        raise ValueError("nothing to sum up")
    return geometric_mean(values), min(values)
