"""The throughput policy: decisions, probes and their bound, the account against zero steps, agreement of ranks."""

from __future__ import annotations

import json
import math
import pickle
import random
from typing import Any

import numpy as np
import pytest

from sglang_adaptive.lab.simulate import score
from sglang_adaptive.lab.simulate.contenders import build
from sglang_adaptive.lab.simulate.cost import load_cost
from sglang_adaptive.lab.simulate.engine import play
from sglang_adaptive.lab.simulate.scenes import SUITES, Scene, Setting
from sglang_adaptive.lab.simulate.trace import Trace, closed_loop
from sglang_adaptive.policy.choice import Coming, drafted
from sglang_adaptive.policy.observation import RoundObservation
from sglang_adaptive.policy.profile import CostProfile
from sglang_adaptive.policy.throughput import ThroughputOptions, ThroughputPolicy
from sglang_adaptive.policy.throughput.choice import why
from sglang_adaptive.policy.throughput.probing import ALLOWANCE_ROUNDS, expected_improvement
from tests.unit.policy.throughput.test_acceptance import drafts
from tests.unit.policy.throughput.test_cost import KEY, profile

COST = load_cost(None)[1]
LADDER = COST.steps
H200 = profile(COST.cells())


def serve(policy: ThroughputPolicy, p: float, batch: int, rounds: int, seed: int = 0) -> list[int]:
    """Run *policy* without a clock; return its depths."""
    rng, depths = random.Random(seed), []
    for _ in range(rounds):
        depths.append(policy.choose(Coming(batch)).steps)
        policy.observe(RoundObservation(drafted(depths[-1]), drafts(rng, p, depths[-1], batch), batch))
        if policy.cost_sync_due:
            policy.import_cost(policy.export_cost())
    return depths


def trace(batch: int, p: Any, seed: int = 0, given: Any = COST, rounds: int = 1200) -> Trace:
    rng = np.random.default_rng([seed, batch])
    who = closed_loop(np.full(rounds, batch), rng, 64)
    by_round = np.full(rounds, p) if isinstance(p, float) else np.asarray(p)
    return Scene(COST, who, by_round, np.full(rounds, 0.97), given=given).build(rng)


def test_without_graphs_no_depth_has_any() -> None:
    policy = ThroughputPolicy(3, profile=H200)
    policy.set_cuda_graph_bs(None)
    assert policy.cuda_graph_bs_for_step(7) is None


def test_depths_that_cannot_win_never_run() -> None:
    # Past the roofline a round's time is proportional to its tokens: depth pays only while drafts are free.
    cells = {(b, s): 0.005 * max(1.0, b * (s + 1) / 256) + 0.0003 * s for b in (1, 64, 512) for s in LADDER}
    policy = ThroughputPolicy(3, profile=profile(cells))
    policy.set_cuda_graph_bs([1, 64, 512])
    assert policy.cuda_graph_bs_for_step(7) == [1, 64, 512]
    assert max(serve(policy, 0.95, 512, 300)[1:]) <= 3


def drive_replica(policy: ThroughputPolicy, payloads: list[str | None], lying: bool) -> list[int]:
    """Run one rank with its own clock but the payloads of rank 0 (None: this is rank 0, which fills the list)."""
    rng, clock, depths, handed = random.Random(1), random.Random(2), [], iter(list(payloads))
    leads = not payloads
    for index in range(900):
        batch = (1, 8, 48)[index // 100 % 3]
        depths.append(policy.choose(Coming(batch)).steps)
        p = 0.9 if index // 150 % 2 else 0.3
        seconds = 0.006 * clock.uniform(0.9, 1.1) if not lying else clock.uniform(1e-5, 10.0)
        policy.observe(RoundObservation(drafted(depths[-1]), drafts(rng, p, depths[-1], batch), batch, seconds))
        if policy.cost_sync_due:
            own = json.dumps(policy.export_cost())
            if leads:
                payloads.append(own)
            policy.import_cost(json.loads(own if leads else str(next(handed))))
    return depths


def test_ranks_with_one_table_decide_alike_whatever_their_clocks_say() -> None:
    payloads: list[str | None] = []
    first = drive_replica(ThroughputPolicy(3, profile=H200), payloads, lying=False)
    other = drive_replica(ThroughputPolicy(3, profile=H200), payloads, lying=True)
    assert first == other
    assert len(set(first)) > 2
    # The clock does matter: a rank that used its wrong times would diverge from the others.
    alone: list[str | None] = []
    assert drive_replica(ThroughputPolicy(3, profile=H200), alone, lying=True) != first


def recorded(policy: Any) -> list[tuple[int, int | None]]:
    """Return a list that gets the live steps, and those of a probe if there is one, of each round of *policy*."""
    rounds, take = [], policy._prober.take_round

    def take_round(row: Any) -> int | None:
        rounds.append((policy._live, take(row)))
        return rounds[-1][1]

    policy._prober.take_round = take_round
    return rounds


@pytest.mark.parametrize("suite", ["stationary", "both", "bad-draft", "cold-start", "profile-15"])
def test_probes_stay_within_their_bound(suite: str) -> None:
    probed = 0
    for drawn in SUITES[suite].traces(Setting(COST, 800, 8, 3)):
        policy: Any = build(drawn)
        rounds, account = recorded(policy), policy._prober
        depths = play(policy, drawn)
        probes = [(r, live, s) for r, (live, s) in enumerate(rounds) if s is not None]
        slowest = float(drawn.seconds.max())
        bound = account.budget * account.served_seconds + ALLOWANCE_ROUNDS * slowest
        assert account.lost_seconds <= bound
        lost = sum(max(0.0, drawn.seconds[r, s] - drawn.tokens[r, s] / drawn.rates[r, live]) for r, live, s in probes)
        taken = float(score.chosen(drawn.seconds, depths).sum())
        assert lost <= account.budget * taken + ALLOWANCE_ROUNDS * slowest
        probed += len(probes)
    assert probed > 0


def test_without_a_budget_nothing_is_probed() -> None:
    policy = ThroughputPolicy(3, ThroughputOptions(probe_budget=0.0))
    serve(policy, 0.0, 16, 600)
    assert policy._prober.started == 0
    assert policy._live == 0


@pytest.mark.parametrize("launch", [0, 7])
@pytest.mark.parametrize("batch", [1, 8, 64])
@pytest.mark.parametrize("p", [0.0, 0.03])
def test_a_useless_draft_costs_at_most_one_percent(launch: int, batch: int, p: float) -> None:
    drawn = trace(batch, p)
    policy = ThroughputPolicy(launch, profile=H200)
    assert score.worst_window_against_zero(drawn, play(policy, drawn)) >= 0.99


@pytest.mark.parametrize("batch", [1, 8, 64])
def test_a_draft_that_collapses_costs_at_most_one_percent_and_is_found_again(batch: int) -> None:
    """On average: a look that happens to run deep when the draft collapses costs more."""
    worst = []
    for seed in range(4):
        p = np.concatenate([np.full(400, 0.9), np.zeros(500), np.full(500, 0.9)])
        drawn = trace(batch, p, seed, rounds=1400)
        depths = play(build(drawn), drawn)
        worst.append(score.worst_window_against_zero(drawn, depths))
        assert (depths[450:900] == 0).mean() > 0.85 and (depths[1200:] > 0).mean() > 0.9
    assert np.mean(worst) >= 0.99 and min(worst) >= 0.98


@pytest.mark.parametrize("known", [H200, None])
@pytest.mark.parametrize("batch", [16, 64])
def test_a_draft_that_recovers_unseen_leaves_zero_steps_for_good(batch: int, known: CostProfile | None) -> None:
    """Without shadow accepts, probes find it out. One a round would leave no round to choose other steps in."""
    policy = ThroughputPolicy(3, profile=known)
    assert set(serve(policy, 0.05, batch, 2000)[-300:]) <= {0, 1}
    assert min(serve(policy, 0.9, batch, 1000, seed=1)[-300:]) >= 3


def test_a_slow_request_counts_as_much_as_a_fast_one() -> None:
    """The batch holds one each of two kinds of text, and most tokens per second does not finish both soonest."""
    policy, rng = ThroughputPolicy(3, profile=H200), random.Random(0)
    requests = list(range(64))
    for _ in range(400):
        steps = policy.choose(Coming(64)).steps
        counts = [drafts(rng, 0.97 if request % 2 else 0.2, steps, 1)[0] for request in requests]
        policy.observe(RoundObservation(drafted(steps), counts, 64, requests=requests))
    seconds = {s: t for (b, s), t in COST.cells().items() if b == 64}
    easy, hard = [{s: sum(p**j for j in range(s + 1)) for s in LADDER} for p in (0.97, 0.2)]
    soonest = min(LADDER, key=lambda s: seconds[s] * (easy[policy._live] / easy[s] + hard[policy._live] / hard[s]))
    assert policy._live == soonest


def test_with_one_request_at_a_time_steps_follow_each_request() -> None:
    policy, rng = ThroughputPolicy(3, profile=H200), random.Random(0)
    deep = {0: [], 1: []}
    for request in range(60):
        p = 0.95 if request % 2 else 0.1
        for index in range(60):
            steps = policy.choose(Coming(1)).steps
            if request > 30 and index > 20:
                deep[request % 2].append(steps)
            policy.observe(RoundObservation(drafted(steps), drafts(rng, p, steps, 1), 1, requests=[request]))
    assert sum(deep[1]) / len(deep[1]) > 5 > 2 > sum(deep[0]) / len(deep[0])


def test_fifteen_thousand_rounds_leave_the_state_as_small_as_six_thousand() -> None:
    policy, rng = ThroughputPolicy(3, profile=H200), random.Random(0)
    rounds = [[rng.randrange(8) for _ in range(4)] for _ in range(97)]

    def largest_within(count: int) -> int:
        largest = 0
        for index in range(count):
            batch = 1 + index % 40
            steps = policy.choose(Coming(batch)).steps
            counts = [min(steps, c) for c in rounds[index % 97]]
            policy.observe(RoundObservation(drafted(steps), counts, batch, 0.006))
            if policy.cost_sync_due:
                policy.import_cost(policy.export_cost())
            if index % 250 == 249:  # values derived from the latest times are rebuilt as batch sizes come
                largest = max(largest, len(pickle.dumps(policy)))  # every object that the policy keeps
        return largest

    first = largest_within(6_000)
    assert largest_within(9_000) < 1.1 * first  # half a byte a round would be too much


def test_the_snapshot_is_made_of_builtins_and_says_why() -> None:
    policy = ThroughputPolicy(3, profile=H200)
    assert policy.snapshot()["why"]["code"] == "start"
    serve(policy, 0.9, 8, 200)
    told = policy.snapshot()
    assert json.loads(json.dumps(told)) == told
    assert told["why"]["code"] in ("best", "stale", "probe")
    assert str(told["steps"]) in told["why"]["words"]
    assert [entry["position"] for entry in told["acceptance"]] == list(range(1, 8))
    assert [rate["steps"] for rate in told["rates"]] == list(LADDER)
    assert told["rates"][0]["source"] == "profile"
    table = told["cost_table"]
    row = table["batch_sizes"].index(8)
    assert table["seconds"][row] == [rate["seconds"] for rate in told["rates"]]
    assert table["source"][row] == [rate["source"] for rate in told["rates"]]
    assert sorted(serve(policy, 0.0, 8, 300)[-100:])[50] in (0, 1)


@pytest.mark.parametrize(("best", "code"), [(3, "best"), (0, "stale"), (5, "stale")])
def test_why_steps_run_that_are_not_best(best: int, code: str) -> None:
    shares = {0: 0.8, 3: 1.0, 5: 0.9, best: 1.1}
    promised = [{"steps": steps, "times_running": share, "allowed": True} for steps, share in shares.items()]
    assert why(drafted(3), 3, 10, False, promised)["code"] == code


def test_the_cost_table_goes_a_little_beyond_what_is_known() -> None:
    policy = ThroughputPolicy(3)
    assert policy.snapshot()["cost_table"]["batch_sizes"] == [1, 2]
    play(policy, trace(16, 0.8, given=None, rounds=200))
    table = policy.snapshot()["cost_table"]
    assert table["batch_sizes"] == [1, 2, 3, 4, 6, 8, 12, 16, 24]
    assert {len(row) for row in table["seconds"]} == {len(table["steps"])} == {len(LADDER)}
    sources = dict(zip(table["batch_sizes"], table["source"], strict=True))
    measured = {(cell["batch_size"], cell["steps"]) for cell in policy.snapshot()["cost_cells"]}
    assert {(16, steps) for steps, source in zip(LADDER, sources[16], strict=True) if source == "measured"} <= measured
    assert "measured" in sources[16] and set(sources[2]) == {"interpolated"}


def test_what_was_measured_is_what_the_next_start_begins_from() -> None:
    drawn = trace(16, 0.8, given=None, rounds=600)
    policy = ThroughputPolicy(3)
    play(policy, drawn)
    learnt = policy.export_profile(KEY, "test")
    assert learnt.cells and all(cell.rounds for cell in learnt.cells)
    for cell in learnt.cells:
        assert cell.seconds == pytest.approx(COST.cells()[16, cell.steps], rel=0.05)
    again = ThroughputPolicy(3, profile=learnt)
    live = policy._live
    assert again._times.at(16).seconds[live] == pytest.approx(COST.cells()[16, live], rel=0.05)


def test_expected_improvement_is_the_mean_of_the_positive_part() -> None:
    rng = random.Random(0)
    drawn = [max(0.0, rng.gauss(-0.02, 0.05)) for _ in range(200_000)]
    assert expected_improvement(0.02, 0.05) == pytest.approx(math.fsum(drawn) / len(drawn), rel=0.02)
    assert expected_improvement(0.02, 0.0) == 0.0
