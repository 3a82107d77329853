"""The throughput policy in the simulator, complete and with one part disabled."""

from __future__ import annotations

import numpy as np
import pytest

from sglang_adaptive.lab.simulate import score
from sglang_adaptive.lab.simulate.contenders import chosen, contenders
from sglang_adaptive.lab.simulate.cost import load_cost
from sglang_adaptive.lab.simulate.engine import play
from sglang_adaptive.lab.simulate.ours import ABLATIONS, WHOLE, build
from sglang_adaptive.lab.simulate.scenes import SUITES, Setting
from sglang_adaptive.lab.simulate.trace import Trace
from sglang_adaptive.policy.choice import Coming, drafted
from sglang_adaptive.policy.observation import RoundObservation
from sglang_adaptive.policy.throughput import ThroughputPolicy

COST = load_cost(None)[1]
SETTING = Setting(COST, rounds=800, traces=4, seed=7)


def first(suite: str) -> Trace:
    return next(SUITES[suite].traces(SETTING))


def test_the_policy_stays_near_the_oracle_and_above_every_static_depth() -> None:
    known = contenders(COST.steps)
    traces = list(SUITES["acceptance"].traces(SETTING))

    def mean(name: str) -> float:
        return float(np.mean([score.share(t, play(known[name].make(t), t)) for t in traces]))

    ours = mean("throughput")
    assert ours >= 0.97
    assert all(ours > mean(f"static-{steps}") for steps in COST.steps)


@pytest.mark.parametrize("name", ABLATIONS)
def test_every_ablation_plays_and_differs_from_the_whole_policy(name: str) -> None:
    # Only a wrong profile, changing acceptance and several batch sizes exercise every part; only a useless draft causes
    # long stays at zero steps, where hits are observed.
    traces = list(SUITES["bad-draft" if name == "no-hearing" else "profile-15"].traces(SETTING))
    differs = [not np.array_equal(play(build(t, ABLATIONS[name]), t), play(build(t), t)) for t in traces]
    assert any(differs)


@pytest.mark.parametrize(
    ("names", "ablate", "played"),
    [
        ([], True, ["throughput", *ABLATIONS]),
        (["ema"], True, ["ema", *ABLATIONS]),
        (["no-clock", "throughput"], False, ["throughput", "no-clock"]),
    ],
)
def test_ablations_come_after_the_named_policies(names: list[str], ablate: bool, played: list[str]) -> None:
    assert [contender.name for contender in chosen(names, COST.steps, ablate)] == played


def test_no_ablation_plays_unasked() -> None:
    assert not set(ABLATIONS) & {contender.name for contender in chosen([], COST.steps)}


def test_without_a_clock_the_policy_is_told_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[RoundObservation] = []
    whole = ThroughputPolicy.observe

    def observe(self: ThroughputPolicy, observation: RoundObservation) -> None:
        told.append(observation)
        whole(self, observation)

    monkeypatch.setattr(ThroughputPolicy, "observe", observe)
    trace = first("both")
    play(build(trace, ABLATIONS["no-clock"]), trace)
    assert len(told) == trace.rounds - 1
    assert all(observation.seconds is None for observation in told)
    told.clear()
    play(build(trace), trace)
    assert any(observation.seconds is not None for observation in told)


def test_without_censoring_an_undrafted_position_counts_as_rejected() -> None:
    observation = RoundObservation(drafted(1), [1] * 8, 8)
    depths = {}
    for name in ("whole", "no-censoring"):
        policy = build(first("both"), ABLATIONS.get(name, WHOLE))
        for _ in range(60):
            policy.choose(Coming(8))
            policy.observe(observation)
        depths[name] = policy.choose(Coming(8)).steps
    assert depths["no-censoring"] < depths["whole"]
