"""The throughput policy in the simulator, complete and with one part disabled."""

from __future__ import annotations

import numpy as np
import pytest

from sglang_adaptive.lab.simulate import score
from sglang_adaptive.lab.simulate.contenders import chosen, contenders
from sglang_adaptive.lab.simulate.cost import load_cost
from sglang_adaptive.lab.simulate.engine import play
from sglang_adaptive.lab.simulate.ours import ABLATIONS, build
from sglang_adaptive.lab.simulate.scenes import SUITES, Setting

COST = load_cost(None)[1]
SETTING = Setting(COST, rounds=800, traces=4, seed=7)


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
