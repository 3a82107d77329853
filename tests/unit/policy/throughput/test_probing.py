"""Probes of a server that starts without a profile: what they find, and what a disturbed one may not spoil."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from sglang_adaptive.lab.simulate.engine import DraftOutputs
from sglang_adaptive.policy.config import CapturedSteps
from sglang_adaptive.policy.observation import RoundObservation
from sglang_adaptive.policy.throughput import ThroughputOptions, ThroughputPolicy
from sglang_adaptive.policy.throughput.base_cost import form_seconds
from tests.unit.policy.throughput.test_acceptance import drafts

LADDER = (0, 1, 2, 3, 5, 7)
Seconds = Callable[[int], float]


def share_of_best(seconds: Seconds, p: float, batch: int, rounds: int, slow: float = 1.0, seed: int = 0) -> float:
    """Return tokens/s over those of the best depth in the second half of *rounds*.

    A draft is accepted with probability *p*; the first five probe rounds of 7 steps take *slow* times as long.
    """
    draw, outputs = random.Random(seed), DraftOutputs(8)
    policy = ThroughputPolicy(3, ThroughputOptions(candidate_steps=LADDER))
    known: RoundObservation | None = None
    slowed, tokens, took = 0, 0, 0.0
    for at in range(rounds):
        steps = policy.get_steps_for_batch(batch)
        probes = policy.probing and steps == 7 and slowed < 5
        slowed += probes
        if known is not None:
            policy.observe(known)
            if policy.cost_sync_due:
                policy.import_cost(policy.export_cost())
        counts, told = drafts(draw, p, steps, batch), outputs.check(steps, batch, policy.wants_shadow_drafts)
        heard = seconds(steps) * draw.gauss(1.0, 0.02) * (slow if probes else 1.0)
        known = RoundObservation(
            steps, counts, batch, heard if known is not None and known.steps == steps else None,
            shadow_accepts=drafts(draw, p, 1, batch) if told else (), requests=range(batch),
            extended=bool(steps) or outputs.extended,
        )  # fmt: skip
        if at >= rounds // 2:
            tokens, took = tokens + sum(counts) + batch, took + seconds(steps)
    return tokens / took / max(batch * sum(p**at for at in range(steps + 1)) / seconds(steps) for steps in LADDER)


@pytest.mark.parametrize("slow", [1.0, 1.12, 1.2, 2.0])
@pytest.mark.parametrize("seed", [0, 2])
def test_a_disturbed_probe_does_not_exclude_the_best_depth(slow: float, seed: int) -> None:
    """Without a repeated probe, 5 steps would run for good, at 0.93 of the rate."""
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
        ran.add(steps := policy.get_steps_for_batch(1))
        policy.observe(RoundObservation(steps, [0], 1, form_seconds(1, steps)))
        if policy.cost_sync_due:
            policy.import_cost(policy.export_cost())
    assert {1, 3} <= ran <= {1, 2, 3}


def test_ranks_may_still_run_steps_that_the_configuration_has_lost() -> None:
    policy = ThroughputPolicy(1, ThroughputOptions(candidate_steps=(0, 1, 3)))
    assert set(policy.outlook(4, 7).rounds) == {0, 1, 3}
    policy.follow(4, 7, 7, leads=True)
    policy.observe(RoundObservation(7, [2] * 4, 4, 0.01))
    assert set(policy.outlook(4, 7).rounds) == {0, 1, 3}


def test_nothing_is_probed_while_an_operator_holds_the_steps() -> None:
    policy = ThroughputPolicy(3, ThroughputOptions(candidate_steps=LADDER))
    for _ in range(200):
        policy.get_steps_for_batch(8)
        policy.observe(RoundObservation(3, [2] * 8, 8, form_seconds(8, 3), chosen=False))
        if policy.cost_sync_due:
            policy.import_cost(policy.export_cost())
    assert policy.probe_totals().started == 0
