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
from sglang_adaptive.policy.base import AdaptivePolicy
from sglang_adaptive.policy.choice import Choice, Coming, drafted
from sglang_adaptive.policy.observation import RoundObservation

COST: RoundCost = load_cost(None)[1]
SMALL = Setting(COST, rounds=300, traces=6, seed=3)


def uniform_trace(batch: int, p: float, rounds: int = 200) -> Trace:
    rng = np.random.default_rng(9)
    who = closed_loop(np.full(rounds, batch), rng, 64)
    return Scene(COST, who, np.full(rounds, p), np.ones(rounds), given=COST).build(rng)


class Recorder(AdaptivePolicy):
    def __init__(self, ladder: tuple[int, ...]) -> None:
        self.ladder = ladder
        self.events: list[tuple[str, object]] = []
        self.asked = 0

    def choose(self, coming: Coming) -> Choice:
        steps = self.ladder[(self.asked // 3) % len(self.ladder)]
        self.events.append(("choose", steps))
        self.asked += 1
        return drafted(steps)

    def observe(self, observation: RoundObservation) -> None:
        self.events.append(("observe", observation))


def test_the_lag_is_exactly_one_round() -> None:
    trace = uniform_trace(4, 0.7, rounds=40)
    recorder = Recorder(trace.ladder)
    depths = play(recorder, trace).tolist()
    kinds = [kind for kind, _ in recorder.events]
    assert kinds == ["choose"] + ["choose", "observe"] * 39
    observed = [event for kind, event in recorder.events if kind == "observe"]
    # The n-th result arrives after the choice for round n + 1 and belongs to round n.
    for index, seen in enumerate(observed):
        assert isinstance(seen, RoundObservation)
        assert seen.steps == depths[index]
        assert list(seen.num_correct_drafts_per_req) == [min(int(k), depths[index]) for k in trace.accepted[index][:4]]


def test_a_round_is_timed_only_when_it_can_be_compared() -> None:
    trace = uniform_trace(16, 0.7, rounds=400)
    recorder = Recorder(trace.ladder)
    depths = play(recorder, trace)
    seen = [event for kind, event in recorder.events if kind == "observe"]
    timed = [index for index, obs in enumerate(seen) if isinstance(obs, RoundObservation) and obs.seconds]
    assert timed
    for index in timed:
        obs = seen[index]
        assert isinstance(obs, RoundObservation)
        mean = trace.seconds[index, depths[index]]
        assert obs.seconds == pytest.approx(mean * trace.clock[index])
    alike = [former == steps or min(former, steps) > 0 for former, steps in itertools.pairwise(depths)]
    expected = [i for i in range(1, 399) if alike[i - 1] and trace.comparable[i]]
    assert timed == expected


def test_measured_cost_is_handed_over_when_the_policy_says_that_it_is_due() -> None:
    trace = uniform_trace(1, 0.5, rounds=100)
    handed: list[str] = []

    class Timed(StaticPolicy):
        learns = True
        cost_sync_due = False

        def choose(self, coming: Coming) -> Choice:
            self.cost_sync_due = len(handed) == 0
            return drafted(1)

        def observe(self, observation: RoundObservation) -> None:
            """Learn nothing."""

        def export_cost(self) -> list[float]:
            handed.append("export")
            return [1.0]

        def import_cost(self, payload: list[float]) -> None:
            handed.append(f"import {payload}")
            self.cost_sync_due = False

    play(Timed(1), trace)
    assert handed == ["export", "import [1.0]"]


def test_a_depth_outside_the_ladder_is_refused() -> None:
    with pytest.raises(SimulationError, match="chose 4 steps"):
        play(StaticPolicy(4), uniform_trace(1, 0.5, rounds=10))


def test_a_depth_without_a_graph_at_that_batch_is_refused() -> None:
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
