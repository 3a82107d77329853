"""Comparison of distributions."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from sglang_adaptive.audit import sampled


def test_two_counts_are_compared_as_scipy_does() -> None:
    from scipy.stats import chi2_contingency

    ours, theirs = Counter(a=40, b=30, c=25), Counter(a=55, b=21, c=30)
    wanted = chi2_contingency([[40, 30, 25], [55, 21, 30]], correction=False).pvalue
    assert sampled.probability(ours, theirs) == pytest.approx(wanted)
    rare = Counter({"a": 40, "b": 30, "c": 25, **{str(at): 1 for at in range(6)}})
    wanted = chi2_contingency([[40, 30, 25, 6], [55, 21, 30, 0]], correction=False).pvalue
    assert sampled.probability(rare, theirs) == pytest.approx(wanted)
    assert sampled.probability(Counter(a=9), Counter(a=9)) == 1.0


def test_a_shifted_distribution_is_seen_and_chance_is_not() -> None:
    draw = random.Random(3)

    def texts(chance: float) -> list[list[int]]:
        return [[int(draw.random() < chance) for _ in range(sampled.TOKENS)] for _ in range(300)]

    fair = texts(0.5)
    assert min(p for _, _, p in sampled.compared(texts(0.5), fair)) > sampled.ALPHA
    assert min(p for _, _, p in sampled.compared(texts(0.8), fair)) < sampled.ALPHA
