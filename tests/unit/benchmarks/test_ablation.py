"""The throughput policy in the simulator with one part left out."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import ablation
from sglang_adaptive.lab.simulate.cost import load_cost
from sglang_adaptive.lab.simulate.engine import play
from sglang_adaptive.lab.simulate.scenes import SUITES, Setting
from sglang_adaptive.lab.simulate.trace import Trace
from sglang_adaptive.policy.choice import Coming, drafted
from sglang_adaptive.policy.observation import RoundObservation
from sglang_adaptive.policy.throughput import ThroughputPolicy

COST = load_cost(None)[1]
SETTING = Setting(COST, rounds=800, traces=4, seed=7)


def first(suite: str) -> Trace:
    return next(SUITES[suite].traces(SETTING))


@pytest.mark.parametrize("name", ablation.PARTS)
def test_every_ablation_plays_and_differs_from_the_whole_policy(name: str) -> None:
    # Only a wrong profile, changing acceptance and several batch sizes exercise every part; only a useless draft causes
    # long stays at zero steps, where hits are observed.
    traces = list(SUITES["bad-draft" if name == "no_hearing" else "profile-15"].traces(SETTING))
    differs = [not np.array_equal(play(getattr(ablation, name)(t), t), play(ablation.whole(t), t)) for t in traces]
    assert any(differs)


def test_without_a_clock_the_policy_is_told_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[RoundObservation] = []
    whole = ThroughputPolicy.observe

    def observe(self: ThroughputPolicy, observation: RoundObservation) -> None:
        told.append(observation)
        whole(self, observation)

    monkeypatch.setattr(ThroughputPolicy, "observe", observe)
    trace = first("both")
    play(ablation.no_clock(trace), trace)
    assert len(told) == trace.rounds - 1
    assert all(observation.seconds is None for observation in told)
    told.clear()
    play(ablation.whole(trace), trace)
    assert any(observation.seconds is not None for observation in told)


def test_without_censoring_an_undrafted_position_counts_as_rejected() -> None:
    observation = RoundObservation(drafted(1), [1] * 8, 8)
    depths = {}
    for name in ("whole", "no_censoring"):
        policy = getattr(ablation, name)(first("both"))
        for _ in range(60):
            policy.choose(Coming(8))
            policy.observe(observation)
        depths[name] = policy.choose(Coming(8)).steps
    assert depths["no_censoring"] < depths["whole"]
