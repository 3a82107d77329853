"""The value of adaptive speculation, for hand-made rounds and for rounds of known value."""

from __future__ import annotations

import random

import pytest

from sglang_adaptive.policy.base import RoundPrices
from sglang_adaptive.policy.choice import drafted
from sglang_adaptive.policy.observation import RoundObservation
from sglang_adaptive.runtime.counters import RoundMix
from sglang_adaptive.runtime.history import at_fixed_depths

SECONDS = {0: 0.010, 1: 0.012, 3: 0.016}
DEVIATION = {0: 0.03, 1: 0.04, 3: 0.0}
TOKENS = (1.0, 1.8, 2.4, 2.8)
PRICES = RoundPrices(SECONDS, DEVIATION, TOKENS, {})


def mix(steps: int, *rounds: tuple[list[int], float | None]) -> RoundMix:
    found = RoundMix(len(rounds[0][0]), steps, True)
    for counts, seconds in rounds:
        found.add(RoundObservation(drafted(steps), counts, len(counts), seconds))
    return found


def fixed(found: RoundMix, prices: RoundPrices = PRICES) -> dict[int, list[float]]:
    """Return seconds and their deviation by steps."""
    return {steps: figures for steps, *figures in at_fixed_depths(found, prices)}


def test_shallower_depths_are_priced_by_what_was_accepted() -> None:
    found = fixed(mix(3, ([3, 0], 0.020)))  # 5 tokens; 1 step would have got 2 + 1, none 1 + 1
    assert found[3][0] == 0.020 and found[3][1] == 0.0
    assert found[1][0] == pytest.approx(0.020 * 12 / 16 * 5 / 3)
    assert found[0][0] == pytest.approx(0.020 * 10 / 16 * 5 / 2)
    assert found[1][1] == pytest.approx(0.04 * found[1][0])


def test_deeper_depths_go_on_as_the_policy_expects() -> None:
    prices = RoundPrices(SECONDS, DEVIATION, TOKENS, {3: 0.1})
    found = fixed(mix(1, ([1, 0], 0.012)), prices)
    # The request whose draft was accepted gets (2.8 - 1.8) / (1.8 - 1) more; the other none.
    assert found[3][0] == pytest.approx(0.012 * 16 / 12 * 3 / (3 + 1.25))
    assert found[3][1] == pytest.approx(found[3][0] * (0.04**2 + 0.1**2) ** 0.5)
    from_zero = fixed(mix(0, ([0, 0], 0.010)), prices)
    assert from_zero[3][0] == pytest.approx(0.010 * 16 / 10 * 2 / (2 * 2.8))


def test_drafts_are_taken_to_have_been_right_where_lookups_were() -> None:
    prices = RoundPrices(SECONDS, DEVIATION, TOKENS, {}, {15: 0.020})
    found = fixed(mix(15, ([9, 0], 0.022)), prices)  # 11 tokens; 3 steps would have got 4 + 1 at the most
    assert set(found) == set(SECONDS)
    assert found[3][0] == pytest.approx(0.022 * 16 / 20 * 11 / 5) and found[3][1] == 0.0
    assert found[0][0] == pytest.approx(0.022 * 10 / 20 * 11 / 2)


def test_rounds_without_a_time_take_as_long_as_the_others() -> None:
    assert mix(1, ([1], 0.02), ([0], None), ([1], 0.04)).seconds(1.0) == pytest.approx(0.09)
    assert mix(1, ([1], None), ([0], None)).seconds(0.012) == pytest.approx(0.024)


def test_a_depth_without_a_price_prices_nothing() -> None:
    assert fixed(mix(7, ([7], 0.03))) == {}
    assert fixed(mix(0, ([], 0.01))) == {}


@pytest.mark.parametrize("drafted", [0, 1, 3])
def test_it_is_the_ratio_of_the_two_rates(drafted: int) -> None:
    """Drafts are accepted with 0.8, then 0.75 and 2/3 given the one before, matching TOKENS; times vary by 20%."""
    draw = random.Random(1)

    def accepted() -> int:
        count = 0
        for likely in (0.8, 0.75, 2 / 3)[:drafted]:
            if draw.random() >= likely:
                break
            count += 1
        return count

    rounds = [([accepted() for _ in range(4)], SECONDS[drafted] * draw.uniform(0.8, 1.2)) for _ in range(4000)]
    found = mix(drafted, *rounds)
    taken = found.seconds(0.0)
    for steps, (seconds, _) in fixed(found).items():
        rates = [TOKENS[depth] / SECONDS[depth] for depth in (drafted, steps)]
        assert seconds / taken == pytest.approx(rates[0] / rates[1], rel=0.03)
