"""The throughput policy in the simulator with one part left out."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import ablation
from sglang_adaptive.lab.simulate.cost import load_cost
from sglang_adaptive.lab.simulate.engine import play
from sglang_adaptive.lab.simulate.scenes import SUITES, Setting

COST = load_cost(None)[1]
SETTING = Setting(COST, rounds=800, traces=4, seed=7)


@pytest.mark.parametrize("name", ablation.PARTS)
def test_every_ablation_plays_and_differs_from_the_whole_policy(name: str) -> None:
    # Only a wrong profile, changing acceptance and several batch sizes exercise every part; only a useless draft causes
    # long stays at zero steps, where hits are observed.
    traces = list(SUITES["bad-draft" if name == "no_hearing" else "profile-15"].traces(SETTING))
    differs = [not np.array_equal(play(getattr(ablation, name)(t), t), play(ablation.whole(t), t)) for t in traces]
    assert any(differs)
