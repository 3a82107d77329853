"""Ratios of rates that were measured in turn on the same work, with their standard errors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev


@dataclass(frozen=True)
class Ratio:
    """One rate over another, and the standard error of that; NaN where a single turn tells none."""

    value: float
    error: float

    def __str__(self) -> str:
        return f"{self.value:.3f}" if math.isnan(self.error) else f"{self.value:.3f} ± {self.error:.3f}"


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """Return the geometric mean over turns of ours / theirs; its error is from the spread of the turns' logarithms.

    The i-th of both were measured in the same turn, on the same prompts. Raises ValueError without any.
    """
    logs = [math.log(a / b) for a, b in zip(ours, theirs, strict=True)]
    if not logs:
        raise ValueError("a ratio of no turns")
    value = math.exp(fmean(logs))
    return Ratio(value, value * stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else math.nan)


def mean_ratio(parts: Sequence[Ratio]) -> Ratio:
    """Return the geometric mean of independent ratios. Raises ValueError without any."""
    if not parts:
        raise ValueError("a mean of no ratios")
    value = math.exp(fmean(math.log(part.value) for part in parts))
    relative = math.sqrt(sum((part.error / part.value) ** 2 for part in parts)) / len(parts)
    return Ratio(value, value * relative)


def best_single(rates: Sequence[Mapping[str, float]]) -> str:
    """Return the name with the highest geometric mean over the cases; only names that every case has are looked at."""
    common = set.intersection(*(set(case) for case in rates))
    return max(sorted(common), key=lambda name: fmean(math.log(case[name]) for case in rates))
