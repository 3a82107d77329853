"""The simulator plays a round in the order of a server with overlap scheduling."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from sglang_adaptive.lab.simulate import score
from sglang_adaptive.lab.simulate.contenders import StaticPolicy, contenders
from sglang_adaptive.lab.simulate.cost import RoundCost, SimulationError, load_cost
from sglang_adaptive.lab.simulate.engine import play
from sglang_adaptive.lab.simulate.scenes import SUITES, Setting
from sglang_adaptive.lab.simulate.trace import Scene, Trace, closed_loop
from tests.fakes import InTurn, Learner

COST: RoundCost = load_cost(None)[1]
SMALL = Setting(COST, rounds=300, traces=6, seed=3)


def uniform_trace(batch: int, p: float, rounds: int = 200) -> Trace:
    rng = np.random.default_rng(9)
    who = closed_loop(np.full(rounds, batch), rng, 64)
    return Scene(COST, who, np.full(rounds, p), np.ones(rounds), given=COST).build(rng)


def test_the_lag_is_exactly_one_round_and_a_round_is_timed_only_when_it_can_be_compared() -> None:
    trace = uniform_trace(16, 0.7, rounds=400)
    recorder = InTurn(trace.ladder)
    depths = play(recorder, trace).tolist()
    assert recorder.chosen == depths
    # The n-th result arrives after the choice for round n + 1 and belongs to round n.
    assert [asked for asked, _ in recorder.told] == list(range(2, 401))
    for index, (_, seen) in enumerate(recorder.told):
        assert seen.steps == depths[index]
        assert list(seen.num_correct_drafts_per_req) == [min(int(k), depths[index]) for k in trace.accepted[index][:16]]
    timed = {index: seen.seconds for index, (_, seen) in enumerate(recorder.told) if seen.seconds}
    assert timed
    for index, seconds in timed.items():
        assert seconds == pytest.approx(trace.seconds[index, depths[index]] * trace.clock[index])
    alike = [former == steps or min(former, steps) > 0 for former, steps in itertools.pairwise(depths)]
    expected = [i for i in range(1, 399) if alike[i - 1] and trace.comparable[i]]
    assert list(timed) == expected


def test_measured_cost_is_handed_over_when_the_policy_says_that_it_is_due() -> None:
    learner = Learner()
    play(learner, uniform_trace(1, 0.5, rounds=100))
    assert len(learner.seen) == 99 and learner.table == {"rounds": 98}


def test_a_depth_outside_the_ladder_or_without_a_graph_at_that_batch_is_refused() -> None:
    with pytest.raises(SimulationError, match="chose 4 steps"):
        play(StaticPolicy(4), uniform_trace(1, 0.5, rounds=10))

    class Pruned(StaticPolicy):
        def cuda_graph_bs_for_step(self, step: int) -> list[int] | None:
            return [1, 2, 4] if step > 3 else [1, 2, 4, 8]

    assert (play(Pruned(5), uniform_trace(3, 0.5, rounds=10)) == 5).all()
    assert (play(Pruned(3), uniform_trace(5, 0.5, rounds=10)) == 3).all()
    with pytest.raises(SimulationError, match=r"5 steps at batch 5; it can run \[0, 1, 2, 3\]"):
        play(Pruned(5), uniform_trace(5, 0.5, rounds=10))


@pytest.mark.parametrize(("batch", "p", "steps"), [(1, 0.3, 2), (8, 0.9, 7), (64, 0.6, 1), (32, 0.0, 5)])
def test_a_static_policy_has_its_closed_form(batch: int, p: float, steps: int) -> None:
    trace = uniform_trace(batch, p)
    depths = play(StaticPolicy(steps), trace)
    tokens = batch * (1 - p ** (steps + 1)) / (1 - p)
    rate = tokens / COST.cells()[batch, steps]
    assert score.tokens_per_second(trace, depths) == pytest.approx(rate)
    best = max(batch * (1 - p ** (s + 1)) / (1 - p) / COST.cells()[batch, s] for s in COST.steps)
    assert score.share(trace, depths) == pytest.approx(rate / best)


@pytest.mark.parametrize("name", SUITES)
def test_the_oracle_beats_every_static_depth_on_every_trace(name: str) -> None:
    known = contenders(COST.steps)
    for trace in SUITES[name].traces(SMALL):
        oracle = score.share(trace, play(known["oracle"].make(trace), trace))
        assert oracle == pytest.approx(1.0)
        for steps in COST.steps:
            fixed = np.full(trace.rounds, steps)
            assert score.share(trace, fixed) <= 1.0 + 1e-12
            assert (score.efficiency(trace, fixed) <= 1.0 + 1e-12).all()


@pytest.mark.parametrize("name", SUITES)
def test_a_seed_decides_every_trace(name: str) -> None:
    def drawn(seed: int) -> list[np.ndarray]:
        setting = Setting(COST, rounds=120, traces=2, seed=seed)
        return [
            np.concatenate([t.accepted.ravel(), t.clock, t.batch, t.tokens.ravel(), t.seconds.ravel()])
            for t in SUITES[name].traces(setting)
        ]

    assert all(np.array_equal(a, b) for a, b in zip(drawn(1), drawn(1), strict=True))
    assert not any(np.array_equal(a, b) for a, b in zip(drawn(1), drawn(2), strict=True))


def test_what_was_drawn_agrees_with_what_was_expected() -> None:
    trace = uniform_trace(64, 0.8, rounds=2000)
    depths = np.full(trace.rounds, 5)
    drawn = score.chosen(trace.drawn_tokens, depths).mean()
    assert drawn == pytest.approx(score.chosen(trace.tokens, depths).mean(), rel=0.01)
    assert score.drawn_share(trace, depths) == pytest.approx(score.share(trace, depths), rel=0.02)


def test_the_policy_stays_near_the_oracle_and_above_every_static_depth() -> None:
    known = contenders(COST.steps)
    traces = list(SUITES["acceptance"].traces(Setting(COST, rounds=800, traces=4, seed=7)))

    def mean(name: str) -> float:
        return float(np.mean([score.share(t, play(known[name].make(t), t)) for t in traces]))

    ours = mean("throughput")
    assert ours >= 0.97
    assert all(ours > mean(f"static-{steps}") for steps in COST.steps)
