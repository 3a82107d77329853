"""An hour of rounds: what is kept, at which resolution, in how much memory, and the value of adapting."""

from __future__ import annotations

import json
import tracemalloc

import pytest

from sglang_adaptive.policy.base import AdaptivePolicy, RoundPrices
from sglang_adaptive.policy.choice import FORCED, drafted
from sglang_adaptive.policy.observation import RoundObservation
from sglang_adaptive.policy.throughput import ThroughputPolicy
from sglang_adaptive.runtime.counters import RoundMix
from sglang_adaptive.runtime.history import HOUR, SPANS, History, at_fixed_depths
from sglang_adaptive.runtime.round_times import RoundClock
from tests.fakes import Ticks, controller

DEPTHS = (0, 1, 3)


class Priced(AdaptivePolicy):
    """Prices all depths alike except for their time: a round takes 10 ms plus 2 ms per step."""

    def prices(self, batch_size: int, steps: int) -> RoundPrices:
        seconds = {depth: 0.010 + 0.002 * depth for depth in DEPTHS}
        return RoundPrices(seconds, dict.fromkeys(DEPTHS, 0.01), (1.0, 1.5, 1.75, 1.875), {})


def play(history: History, ticks: Ticks, seconds: int, batch: int = 2, rounds: int = 10, why: str = "") -> None:
    """Verify rounds of 3 steps that accept 1 draft per request, second after second."""
    for _ in range(seconds):
        for _ in range(rounds):
            history.close(Priced())
            history.add(RoundObservation(drafted(3, why=why), [1] * batch, batch, 0.02))
        ticks.now += 1.0
    history.close(Priced())


@pytest.fixture
def ticks() -> Ticks:
    found = Ticks()
    found.now = 10_000.0
    return found


def test_every_span_counts_the_same_rounds(ticks: Ticks) -> None:
    history = History(DEPTHS, ticks)
    play(history, ticks, 50)
    for span, period in SPANS.items():
        found = history.span(span)
        assert (found["span"], found["period"], found["steps"]) == (span, period, list(DEPTHS))
        assert sum(batch["tokens"] for bucket in found["buckets"] for batch in bucket["batches"]) == 50 * 10 * 4
        (region,) = found["by_batch"]
        assert (region["region"], region["requests"], region["rounds"]) == ("2-3", 1000, [0, 0, 500])
        assert region["seconds"] == pytest.approx(10.0, rel=1e-4)
        assert json.loads(json.dumps(found)) == found


def test_old_rounds_leave_one_span_after_the_other(ticks: Ticks) -> None:
    history = History(DEPTHS, ticks)
    play(history, ticks, 5, batch=2)
    ticks.now += 100.0
    play(history, ticks, 5, batch=8)
    assert [one["region"] for one in history.span(60)["by_batch"]] == ["8-15"]
    assert [one["region"] for one in history.span(900)["by_batch"]] == ["2-3", "8-15"]
    ticks.now += HOUR - 60.0
    history.close(Priced())
    assert history.span(900)["buckets"] == [] and history.span(900)["speedup"] is None
    assert [one["region"] for one in history.span(HOUR)["by_batch"]] == ["8-15"]


def test_buckets_say_where_they_lie_and_how_much_of_them_is_over(ticks: Ticks) -> None:
    history = History(DEPTHS, ticks)
    play(history, ticks, 7)
    ticks.now += 3.0
    history.close(Priced())
    first, last = history.span(900)["buckets"]
    assert (first["ago"], first["seconds"]) == (5, 5) and (last["ago"], last["seconds"]) == (0, 5)
    ticks.now += 1.0
    play(history, ticks, 2)
    assert [(one["ago"], one["seconds"]) for one in history.span(900)["buckets"]][-1] == (0, 3)


def test_rounds_without_any_time_take_as_long_as_the_others(ticks: Ticks) -> None:
    """Without a cost model, a depth that ran once between prefills has no time."""
    history = History(DEPTHS, ticks)
    for steps, seconds in ((3, 0.02), (3, 0.02), (1, None)):
        history.add(RoundObservation(drafted(steps), [1, 1], 2, seconds))
    ticks.now += 1.0
    history.close(AdaptivePolicy())
    (region,) = history.span(60)["by_batch"]
    assert region["seconds"] == pytest.approx(0.06) and region["tokens"] == 12


def test_worth_of_the_hour(ticks: Ticks) -> None:
    history = History(DEPTHS, ticks)
    assert history.speedup() is None
    play(history, ticks, 30)
    found = history.speedup()
    assert found is not None and found["seconds"] == 40
    against = {one["steps"]: one for one in found["against"]}
    assert against[3]["times"] == pytest.approx(1.0, rel=1e-4) and against[3]["deviation"] == 0.0
    assert against[0]["times"] == pytest.approx(10 / 16 * 2 / 1, rel=1e-4)
    assert against[0]["deviation"] == pytest.approx(against[0]["times"] * 0.01 * 2**0.5, rel=1e-3)
    play(history, ticks, 5, why=FORCED)  # held by an operator: shown, but not credited to the policy
    assert history.span(HOUR)["by_batch"][0]["rounds"] == [0, 0, 350]
    assert history.speedup()["against"] == found["against"]  # type: ignore[index]


def test_a_full_hour_takes_a_few_hundred_kilobytes(ticks: Ticks) -> None:
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        history = History(range(8), ticks)
        for _ in range(HOUR + 100):
            for batch in (1, 8):
                history.close(AdaptivePolicy())
                history.add(RoundObservation(drafted(3), [1] * batch, batch, 0.02))
            ticks.now += 1.0
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert len(history.span(HOUR)["buckets"]) == HOUR // SPANS[HOUR]
    assert taken < 400_000


def test_a_controller_keeps_it_and_tells_the_worth() -> None:
    ticks = Ticks()
    found = controller(ThroughputPolicy(3), RoundClock(ticks))
    for _ in range(600):
        found.choose(4)
        steps = found.states.live.steps
        ticks.now += 0.010 + 0.001 * steps
        found.verified([steps] * 4, 4)
    ticks.now += 1.0
    told = found.snapshot()["speedup"]
    against = {one["steps"]: one for one in told["against"]}
    assert set(against) == set(found.states.tiers)
    deepest = found.states.tiers[-1]
    # All drafts are accepted: almost every round ran the deepest depth, whose true gain over zero steps is known.
    assert against[deepest]["times"] == pytest.approx(1.0, rel=0.05)
    true = (deepest + 1) * 0.010 / (0.010 + 0.001 * deepest)
    # Zero steps were never timed here, so their time is a guess, and the deviation must show it.
    assert against[0]["times"] == pytest.approx(true, abs=2.0 * against[0]["deviation"])
    assert against[0]["deviation"] < 0.4 * true
    rounds = [sum(one["rounds"]) for one in found.history(HOUR)["by_batch"]]  # type: ignore[index]
    assert rounds == [600]


def test_a_policy_that_cannot_price_costs_the_history_alone(caplog: pytest.LogCaptureFixture) -> None:
    ticks = Ticks()
    policy = ThroughputPolicy(3)
    found = controller(policy, RoundClock(ticks))

    def fail(batch_size: int, steps: int) -> RoundPrices:
        raise RuntimeError("broken")

    policy.prices = fail  # type: ignore[method-assign]
    for _ in range(5):
        found.choose(1)
        found.verified([1], 1)
        ticks.now += 1.0
    told = found.snapshot()
    assert told["speedup"] is None and found.history(HOUR) is None and not told["degraded"]
    assert sum(told["rounds_by_tier"].values()) == 5 and len(caplog.records) == 1


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
