"""Counts of rounds, drafts and accepted tokens."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_adaptive.policy.base import ProbeTotals
from sglang_adaptive.policy.choice import Choice, Coming, Source, drafted
from sglang_adaptive.policy.observation import RoundObservation
from sglang_adaptive.policy.throughput import ThroughputOptions, ThroughputPolicy
from sglang_adaptive.runtime.counters import (
    CAUSES,
    CUT_EVERY,
    LENGTH_BINS,
    REGIONS,
    ContextLengths,
    Counters,
    region_of,
)
from tests import fakes
from tests.fakes import serving
from tests.unit.policy.throughput.test_acceptance import drafts
from tests.unit.policy.throughput.test_policy import H200


def test_regions_are_powers_of_two_and_bounded() -> None:
    assert [region_of(n) for n in (0, 1, 2, 3, 4, 7, 8, 255, 256, 511, 512, 10**9)] == [
        *("1", "1", "2-3", "2-3", "4-7", "4-7", "8-15", "128-255", "256-511", "256-511", "512+", "512+")
    ]
    assert {region_of(n) for n in range(5000)} == set(REGIONS) and len(REGIONS) == 10


def test_a_region_s_rate_is_of_the_rounds_that_were_timed() -> None:
    counters = Counters()
    counters.add_round(RoundObservation(drafted(3), [3, 1], 2, None))
    counters.add_round(RoundObservation(drafted(3), [3, 1, 0], 3, 0.5))
    counters.add_round(RoundObservation(drafted(1), [1], 1, 0.25))
    assert (counters.regions["2-3"].tokens, counters.regions["2-3"].seconds) == (7, 0.5)
    assert (counters.regions["2-3"].batch_size, counters.regions["2-3"].steps) == (3, 3)
    assert counters.latest == "1"


def test_a_region_s_round_that_a_forecast_is_for_was_drafted() -> None:
    """No policy has times of a lookup round by its steps: the expected rate would come and go with each of them."""
    counters = Counters()
    counters.add_round(RoundObservation(drafted(3), [3, 1], 2, 0.5))
    counters.add_round(RoundObservation(Choice(31, Source.LOOKUP), [31, 20, 7], 3, 0.5))
    counters.add_round(RoundObservation(Choice(31, Source.LOOKUP), [31], 1, 0.5))
    assert (counters.regions["2-3"].batch_size, counters.regions["2-3"].steps) == (2, 3)
    assert (counters.regions["1"].batch_size, counters.regions["1"].tokens, counters.latest) == (0, 32, "1")


def test_switches_by_cause() -> None:
    controller, _, policy, _ = serving(answer=3)
    controller.force_steps(7)
    controller.choose(1)
    controller.force_steps(None)
    for answer, batch in ((3, 1), (1, 1), (3, 2), (7, 2)):
        policy.answer = answer
        controller.choose(batch)
    policy.fails_on = "choose"
    controller.choose(2)
    expected = {"forced": 1, "released": 1, "acceptance": 2, "batch size": 1, "degraded": 1}
    assert dict(controller.counters.switches_by_cause) == expected and set(expected) < set(CAUSES)


@pytest.mark.parametrize(
    ("after", "causes"),
    [(3, ["probe", "probe"]), (7, ["probe"]), (1, ["probe", "acceptance"])],
    ids=["back", "stays", "goes on"],
)
def test_the_way_into_a_probe_and_back_is_told_from_a_decision(
    after: int, causes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = ThroughputPolicy(3, ThroughputOptions(candidate_steps=(1, 3, 7)))
    controller = fakes.controller(policy)
    for live, probe in ((3, None), (3, 7), (3, 7), (after, None), (after, None)):
        monkeypatch.setattr(policy._prober, "take_round", lambda row, probe=probe: probe)
        monkeypatch.setattr("sglang_adaptive.policy.throughput.policy.fastest", lambda *known, live=live: live)
        controller.choose(2)
    assert [switch["cause"] for switch in controller.snapshot()["recent_switches"]] == causes


def learnt() -> tuple[ThroughputPolicy, list[ProbeTotals], Counter[bool]]:
    """Return a policy after text of changing acceptance, with the totals and probe rounds seen along the way."""
    policy, rng = ThroughputPolicy(3, ThroughputOptions(probe_budget=0.05)), random.Random(1)
    totals, probing = [], Counter[bool]()
    for index in range(3000):
        p, batch = 0.9 if index // 300 % 2 else 0.2, (1, 2, 8, 16, 32, 4)[index // 100 % 6]
        choice = policy.choose(Coming(batch))
        steps = choice.steps
        probing[choice.probe] += 1
        seconds = H200_SECONDS[batch, steps] * rng.uniform(0.99, 1.01)
        policy.observe(RoundObservation(choice, drafts(rng, p, steps, batch), batch, seconds))
        if policy.cost_sync_due:
            policy.import_cost(policy.export_cost())
        totals.append(policy.probe_totals())
    return policy, totals, probing


H200_SECONDS = {(cell.batch_size, cell.steps): cell.seconds for cell in H200.cells}


def test_probe_totals_never_fall_and_end_at_what_was_charged() -> None:
    policy, totals, probing = learnt()
    assert totals[-1].started > 2 and 0 < probing[True] < probing[False]
    for earlier, later in itertools.pairwise(totals):
        assert later.started >= earlier.started and later.lost_seconds >= earlier.lost_seconds - 1e-12
    assert totals[-1].lost_seconds == policy.snapshot()["probes"]["charged_seconds"] > 0


def test_prices_have_the_rates_of_the_report() -> None:
    policy, _, _ = learnt()
    rates = {rate["steps"]: rate["tokens_per_second"] for rate in policy.snapshot()["rates"]}
    for steps, rate in rates.items():
        expected = policy.prices(4, steps).rate(steps)
        assert expected is not None and math.isclose(4 * expected, rate)
    assert policy.prices(4, 3).rate(4) is None
    assert list(policy.acceptance_by_position()) == [a["probability"] for a in policy.snapshot()["acceptance"]]
    assert ThroughputPolicy(3, ThroughputOptions(candidate_steps=(1, 3))).prices(2, 3).rate(0) is None


ROUNDS = st.lists(
    st.integers(0, 5).flatmap(lambda steps: st.tuples(st.just(steps), st.lists(st.integers(0, steps), max_size=4)))
)


@given(ROUNDS)
def test_counts_are_those_of_every_request_looked_at_alone(rounds: list[tuple[int, list[int]]]) -> None:
    counters = Counters()
    for steps, accepted in rounds:
        counters.add_round(RoundObservation(drafted(steps), accepted, len(accepted)))
    requests = [(steps, kept) for steps, accepted in rounds for kept in accepted]
    for steps, tokens in counters.tokens().items():
        assert tokens == sum(kept + 1 for drafted, kept in requests if drafted == steps)
    for entry in counters.by_position():
        position = entry["position"]
        assert entry["reached"] == sum(steps >= position and kept >= position - 1 for steps, kept in requests)
        assert entry["accepted"] == sum(steps >= position and kept >= position for steps, kept in requests)
    deepest = max((steps for steps, _ in rounds), default=0)
    assert [entry["position"] for entry in counters.by_position()] == list(range(1, deepest + 1))


def test_each_request_counts_where_its_length_is() -> None:
    lengths = ContextLengths()
    lengths.add([1, 511, 512, 1023, 1024, 32767, 32768, 1 << 20], [0, 1, 2, 3, 1, 2, 3, 0], 3)
    for _ in range(CUT_EVERY - 1):
        lengths.add([700], [0], 7)  # not counted
    lengths.add([700], [5], 7)
    found = lengths.as_list()
    assert len(found) == LENGTH_BINS and "to" not in found[-1]
    assert [entry["from"] for entry in found[1:]] == [entry["to"] for entry in found[:-1]]
    counted = {entry["from"]: (entry["requests"], entry["drafted"], entry["accepted"]) for entry in found}
    assert counted[0] == (2, 6, 1)
    assert counted[512] == (3, 13, 10)
    assert counted[1024] == (1, 3, 1)
    assert counted[2048] == counted[4096] == counted[8192] == (0, 0, 0)
    assert counted[16384] == (1, 3, 2)
    assert counted[32768] == (2, 6, 3)
