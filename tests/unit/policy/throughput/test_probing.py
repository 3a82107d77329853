"""Probes of a server that starts without a profile, and when looks at other steps are due and paid for."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_adaptive.lab.simulate.engine import DraftOutputs
from sglang_adaptive.policy.choice import FORCED, CapturedSteps, Coming, drafted
from sglang_adaptive.policy.observation import RoundObservation
from sglang_adaptive.policy.throughput import ThroughputOptions, ThroughputPolicy, probing
from sglang_adaptive.policy.throughput.base_cost import form_seconds
from sglang_adaptive.policy.throughput.rows import RoundTimeRow
from tests.unit.policy.throughput.test_acceptance import drafts

LADDER = (0, 1, 2, 3, 5, 7)
Seconds = Callable[[int], float]


def share_of_best(seconds: Seconds, p: float, batch: int, rounds: int, slow: float = 1.0, seed: int = 0) -> float:
    """Return tokens/s over those of the best depth in the second half of *rounds*.

    A draft is accepted with probability *p*; the first five rounds of 7 steps take *slow* times as long.
    """
    draw, outputs = random.Random(seed), DraftOutputs(8)
    policy = ThroughputPolicy(3, ThroughputOptions(candidate_steps=LADDER))
    known: RoundObservation | None = None
    slowed, tokens, took = 0, 0, 0.0
    for at in range(rounds):
        steps = policy.choose(Coming(batch)).steps
        disturbed = steps == 7 and slowed < 5
        slowed += disturbed
        if known is not None:
            policy.observe(known)
            if policy.cost_sync_due:
                policy.import_cost(policy.export_cost())
        counts, told = drafts(draw, p, steps, batch), outputs.check(steps, batch, policy.wants_shadow_drafts)
        heard = seconds(steps) * draw.gauss(1.0, 0.02) * (slow if disturbed else 1.0)
        alike = known is not None and (known.steps == steps or min(known.steps, steps) > 0)
        known = RoundObservation(drafted(
            steps), counts, batch, heard if alike else None,
            shadow_accepts=drafts(draw, p, 1, batch) if told else (), requests=range(batch),
            extended=bool(steps) or outputs.extended,
        )  # fmt: skip
        if at >= rounds // 2:
            tokens, took = tokens + sum(counts) + batch, took + seconds(steps)
    return tokens / took / max(batch * sum(p**at for at in range(steps + 1)) / seconds(steps) for steps in LADDER)


@pytest.mark.parametrize("slow", [1.0, 1.12, 1.2, 2.0])
@pytest.mark.parametrize("seed", [0, 2])
def test_a_disturbed_visit_does_not_exclude_the_best_depth(slow: float, seed: int) -> None:
    """Without a second look, 5 steps would run for good, at 0.93 of the rate."""
    found = share_of_best(lambda steps: form_seconds(8, steps), 0.85, 8, 8000, slow, seed)
    assert found > 0.99


@pytest.mark.parametrize("batch", [4, 8])
@pytest.mark.parametrize("p", [0.2, 0.3])
@pytest.mark.parametrize("fixed", [0.00125, 0.0025])
def test_zero_steps_are_found_where_drafting_costs_more_than_it_brings(fixed: float, p: float, batch: int) -> None:
    """A probe of 5 rounds would not be timed, because the draft's extend ends a cycle only after 15."""

    def seconds(steps: int) -> float:
        return fixed * (1.0 + 0.3 * (steps > 0) + 0.05 * steps + 0.00276 * batch * (steps + 1))

    assert share_of_best(seconds, p, batch, 6000, seed=1) > 0.99


def test_zero_steps_do_not_run_where_they_have_no_graph() -> None:
    policy = ThroughputPolicy(3, ThroughputOptions(candidate_steps=LADDER))
    policy.set_cuda_graph_bs([1, 8])
    policy.take_over(ThroughputPolicy(3), CapturedSteps({0: [8], 1: [1, 8], 2: [1, 8], 3: [1, 8], 5: [8], 7: [8]}))
    ran = set()
    for _ in range(400):
        ran.add(steps := policy.choose(Coming(1)).steps)
        policy.observe(RoundObservation(drafted(steps), [0], 1, form_seconds(1, steps)))
        if policy.cost_sync_due:
            policy.import_cost(policy.export_cost())
    assert {1, 3} <= ran <= {1, 2, 3}


def test_ranks_may_still_run_steps_that_the_configuration_has_lost() -> None:
    policy = ThroughputPolicy(1, ThroughputOptions(candidate_steps=(0, 1, 3)))
    assert set(policy.outlook(4, 7).rounds) == {0, 1, 3}
    policy.follow(4, drafted(7), 7, leads=True)
    policy.observe(RoundObservation(drafted(7), [2] * 4, 4, 0.01))
    assert set(policy.outlook(4, 7).rounds) == {0, 1, 3}


def test_nothing_is_probed_while_an_operator_holds_the_steps() -> None:
    policy = ThroughputPolicy(3, ThroughputOptions(candidate_steps=LADDER))
    for _ in range(200):
        policy.choose(Coming(8))
        policy.observe(RoundObservation(drafted(3, why=FORCED), [2] * 8, 8, form_seconds(8, 3)))
        if policy.cost_sync_due:
            policy.import_cost(policy.export_cost())
    assert policy.probe_totals().started == 0


def row(seconds: Mapping[int, float], anchor: int = 8, deviation: float = 0.005, **others: Any) -> RoundTimeRow:
    """Return a row whose times are known too well for a probe that trusts the estimates."""
    known: dict[str, Any] = {"noise": 0.02, "surprise": 1.0, "log_base": {}, "lookups": {}} | others
    rungs = tuple((rung, *cell) for rung, cell in enumerate(seconds.items()))
    deviations = dict.fromkeys(seconds, deviation)
    return RoundTimeRow(anchor, anchor, rungs, frozenset(seconds), seconds, deviation=deviations, **known)


TOKENS = [1.0, 1.0, 1.05, 1.1, 1.1, 1.1, 1.1, 1.1]
"""One step is served 9% slower than three, if rounds take as long."""
LOST = 1.0 - 1.0 / 1.1
COST = probing.LOOK_ROUNDS * LOST + 0.1
"""Rounds that a look at it costs."""


class Served:
    """A prober and the rounds of a server, where all results are timed at once."""

    def __init__(self, live: int, timed: Mapping[tuple[int, int], int] | None = None, budget: float = 0.005) -> None:
        acceptance: Any = SimpleNamespace(tokens=TOKENS, ratio_deviation=lambda one, other: 0.0)
        self.lone: list[tuple[int, int, float]] = []
        cost: Any = SimpleNamespace(readings=dict(timed or {}), lone=lambda anchor: self.lone)
        self.live, self.prober, self.now = live, probing.Prober(budget, acceptance, cost), 0

    def round(self, at: RoundTimeRow, timed: bool = True) -> int | None:
        """Run a round; return the steps of a probe."""
        self.now += 1
        probing = self.prober.take_round(at)
        steps = self.live if probing is None else probing
        self.prober.saw(steps, at, self.now, timed, True)
        self.prober.account(steps, self.live, at)
        if not self.prober._left:
            self.learn(at)
        self.prober.consider(at, self.live, self.now)
        return probing

    def learn(self, at: RoundTimeRow) -> None:
        """Hand over times: those of *at*."""
        times: Any = SimpleNamespace(at=lambda batch_size: at)
        self.prober.settle(times)

    def looks(self, at: RoundTimeRow, rounds: int) -> list[tuple[int, int]]:
        """Return the round and the steps of each look that starts within *rounds*."""
        found: list[tuple[int, int]] = []
        for _ in range(rounds):
            before = self.prober.started
            self.round(at)
            if self.prober.started > before:
                found.append((self.now, self.prober._steps))
        return found

    def first(self, at: RoundTimeRow) -> int:
        """Return the round in which the first look starts."""
        while not self.prober.started:
            self.round(at)
        return self.now


def soon(rounds: float) -> Any:
    return pytest.approx(rounds, abs=probing.LOOK_CHECK_ROUNDS)


def test_steps_that_never_ran_are_looked_at_the_sooner_the_less_it_costs() -> None:
    assert Served(3).first(row({1: 1.0, 3: 1.0})) == soon(probing.FIRST * COST)
    assert Served(3).first(row({1: 0.95, 3: 1.0})) == soon(probing.FIRST * (2 * (0.95 - 1.0 / 1.1) + 0.1))


def test_and_later_if_other_batch_sizes_were_timed_or_times_are_as_expected() -> None:
    assert Served(3, {(16, 1): 3}).first(row({1: 1.0, 3: 1.0})) == soon(2 * probing.FIRST * COST)
    assert Served(3, {(16, 3): 3}).first(row({1: 1.0, 3: 1.0})) == soon(probing.FIRST * COST)  # other steps
    for surprise, factor in ((0.1, 2.0), (2.0, 0.5), (9.0, 0.25)):
        assert Served(3).first(row({1: 1.0, 3: 1.0}, surprise=surprise)) == soon(factor * probing.FIRST * COST)


def test_the_rest_of_steps_doubles_after_a_look() -> None:
    at = row({1: 0.95, 3: 1.0})
    rest = min(probing.MOST_REST, probing.REST * (2 * (0.95 - 1.0 / 1.1) + 0.1))
    starts = [now for now, _ in Served(3, {(8, 1): 3}).looks(at, int(8 * rest))]
    gaps = [later - former for former, later in zip([0, *starts], starts, strict=False)]
    assert gaps[:4] == [pytest.approx(factor * rest, abs=2 * probing.LOOK_CHECK_ROUNDS) for factor in (1, 2, 2, 2)]


def test_between_two_looks_at_steps_that_ran_is_a_pause() -> None:
    at = row({1: 1.0, 2: 1.05, 3: 1.0})
    (one, first), (other, second) = Served(3, {(8, 1): 3, (8, 2): 3}).looks(at, 1900)[:2]
    assert {first, second} == {1, 2} and other - one >= probing.PAUSE
    (one, _), (other, _) = Served(3).looks(row({1: 1.0, 2: 0.955, 3: 1.0}), 400)[:2]
    assert other - one < probing.PAUSE


def test_acceptance_beyond_the_live_steps_is_looked_at_unless_another_batch_size_showed_it() -> None:
    at, other, ran = row({1: 1.0, 3: 1.2}), row({1: 1.0, 3: 1.2}, 64), {(n, s): 99 for n in (8, 64) for s in (1, 3)}
    assert Served(1, ran).first(at) == soon(probing.FIRST)
    served = Served(1, ran)
    served.prober.saw(3, other, probing.FIRST // 2, True, True)  # here an earlier round that drafted three
    assert served.first(at) == soon(1.5 * probing.FIRST)
    (one,) = Served(1, ran | {(8, 7): 99}).looks(row({1: 1.0, 3: 1.4, 7: 1.4}), 1000)
    assert one == (soon(probing.FIRST), 3), "the next ones first"
    served = Served(0, ran)
    served.prober._looks.add((8, 3))  # else an ordinary look is due
    assert not served.looks(row({0: 1.0, 3: 1.2}), int(2 * probing.FIRST))  # zero steps see the draft


def test_the_credit_is_three_rounds_at_most_and_grows_by_the_budget() -> None:
    served, at = Served(3), row({1: 1.0, 3: 2.0})
    served.round(at)
    assert served.prober._credits[8] == 2.0 * probing.ALLOWANCE_ROUNDS
    served.round(row({1: 1.0, 3: 2.0}, 16))  # half as much is new at twice the batch size
    assert served.prober._credits[16] == pytest.approx(probing.ALLOWANCE_ROUNDS + 0.005 * 2.0)
    served.prober._credits[8] = 0.0
    for _ in range(20):
        served.round(at)
    assert served.prober._credits[8] == pytest.approx(0.005 * 40.0)


def test_a_look_waits_until_the_credit_covers_it() -> None:
    served, at = Served(3), row({1: 1.0, 3: 1.0})
    served.round(at)
    served.prober._credits[8] = -1.0
    assert served.first(at) == soon((1.0 + COST) / 0.005)
    before, rounds = served.prober._credits[8], 2 * probing.LOOK_ROUNDS
    served.looks(at, rounds)
    assert served.prober.lost_seconds == pytest.approx(probing.LOOK_ROUNDS * LOST)
    assert served.prober._credits[8] == pytest.approx(before - probing.LOOK_ROUNDS * LOST + 0.005 * rounds)
    assert not Served(3, budget=0.0).looks(at, 9000)


def test_a_look_costs_what_its_readings_say() -> None:
    feared, found = row({1: 3.0, 3: 1.0}), row({1: 1.0, 3: 1.0})
    served = Served(3)
    served.first(feared)
    before = served.prober._credits[8]
    while served.prober.take_round(feared):
        served.prober.account(1, 3, feared)
        served.prober.saw(1, feared, served.now, True, True)
    served.learn(found)
    assert served.prober.lost_seconds == pytest.approx(probing.LOOK_ROUNDS * LOST)
    grown = probing.LOOK_ROUNDS * 0.005 * 3.0
    assert served.prober._credits[8] == pytest.approx(min(3.0 * 3.0, before + grown) - probing.LOOK_ROUNDS * LOST)


def test_of_a_costly_look_a_debt_of_three_rounds_is_left() -> None:
    served, at = Served(3), row({1: 6.0, 3: 1.0})
    served.first(at)
    while served.prober._left:
        served.round(at)
    assert served.prober.lost_seconds > 9.0 and served.prober._credits[8] == pytest.approx(-probing.ALLOWANCE_ROUNDS)


def test_a_lone_difference_that_contradicts_the_times_has_one_look_follow() -> None:
    served, at = Served(3, {(8, 1): 99}), row({1: 1.0, 3: 1.0})
    served.round(at)
    served.lone = [(1, 3, 0.1)]  # within what differences scatter
    assert not served.looks(at, 100)
    begun, served.lone = served.now, [(1, 3, 0.5)]
    assert served.looks(at, 200) == [(soon(begun), 1)]
    served.lone = [(1, 3, 0.6)]  # that look has shown another one
    assert len(served.looks(at, 200)) == 1


@pytest.mark.parametrize(("found", "looks"), [(1.0, 0), (1.5, 1)])
def test_once_a_measured_time_has_changed_others_are_looked_at(found: float, looks: int) -> None:
    served, before = Served(3, {(8, steps): 99 for steps in (1, 2, 3)}), row({1: 1.0, 2: 1.0, 3: 1.0})
    for steps in (1, 2):
        served.prober.saw(steps, before, 0, True, True)
    served.first(before)
    after = row({steps: found if steps == served.prober._steps else 1.0 for steps in (1, 2, 3)})
    while (steps := served.prober.take_round(before)) is not None:
        served.prober.account(steps, 3, before)
        served.prober.saw(steps, before, served.now, True, True)
    served.learn(after)
    assert len(served.looks(after, probing.PAUSE // 2)) == looks


@pytest.mark.parametrize(("timed", "rounds"), [(True, 2), (False, 4)])
def test_a_look_ends_with_two_readings_and_without_any_after_four_rounds(timed: bool, rounds: int) -> None:
    served, at = Served(3), row({1: 1.0, 3: 1.0})
    served.first(at)
    assert [served.round(at, timed) for _ in range(20)].count(1) == rounds


@pytest.mark.parametrize("ends", [3, None])
def test_a_look_at_zero_steps_ends_with_a_whole_cycle_or_after_four_rounds(ends: int | None) -> None:
    served, at = Served(3), row({0: 1.0, 3: 1.0})
    served.first(at)
    ran = 0
    while served.prober.take_round(at) == 0:
        ran += 1
        served.prober.saw(0, at, served.now + ran, True, extended=ran == ends)
    assert ran == (ends or 4)
