"""The cost of DSPARK's rounds: the fit, when budgets are planned, and which rounds are tried."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest

from sglang_adaptive.policy.profile import CostProfile, ProfileKey, loads_profile
from sglang_adaptive.policy.verify_cost import (
    AT_FIRST,
    BURST,
    ENOUGH,
    NOT_CAPTURED,
    ONE_TIER,
    SHARE,
    TOO_LITTLE,
    UNKNOWN,
    WHOLE,
    Costs,
    Grid,
    Trials,
    VerifyCosts,
    steps,
)

DRAFTS = 7
SIZES = (1, 2, 4, 8, 12, 16, 24, 32, 40, 48, 56, 64)
GRID = Grid([size * (DRAFTS + 1) for size in SIZES], DRAFTS)
"""SGLang's grid: the tokens of whole blocks at the batch sizes with graphs."""
KEY = ProfileKey("target", "draft", "GPU", 1, 1, "fa3")


def true_seconds(requests: int, tokens: int, a_token: float = 0.00003, planning: float = 0.0001) -> float:
    """Return a round's true duration in these tests; *tokens* are the tier, or `WHOLE`."""
    paid = GRID.padded(requests * (DRAFTS + 1)) if tokens == WHOLE else tokens
    assert paid is not None
    return 0.008 + 0.00002 * requests + a_token * paid + (0.0 if tokens == WHOLE else planning)


def learnt(
    cells: list[tuple[int, int]], times: int = 31, noise: float = 0.05, outliers: float = 0.0, a_token: float = 0.00003
) -> VerifyCosts:
    """Return what is learned from noisy rounds of *cells*, some of which take ten times as long."""
    draw, costs = random.Random(3), VerifyCosts(DRAFTS, SimpleNamespace(profile_dir=None))
    for _ in range(times):
        for requests, tokens in cells:
            seconds = true_seconds(requests, tokens, a_token) * (1.0 + draw.uniform(-noise, noise))
            costs.add(requests, tokens, seconds * (10.0 if draw.random() < outliers else 1.0))
    costs.import_cost(costs.export_cost(), GRID)
    return costs


SOME = [
    *((requests, WHOLE) for requests in (2, 4, 8, 16, 32, 64)),
    *((requests, tier) for requests in (2, 8, 16, 64) for tier in GRID.tried(requests)[:-1]),
]


@pytest.mark.parametrize(("outliers", "error"), [(0.0, 0.03), (0.25, 0.05)])
def test_it_finds_the_cost_of_every_tier_of_measured_and_of_other_requests(outliers: float, error: float) -> None:
    costs = learnt(SOME, outliers=outliers)
    for requests in (2, 8, 12, 16, 24, 40, 64):
        found = costs.at(requests, GRID)
        assert found.why_not == (TOO_LITTLE if requests == 2 else None)
        tiers = GRID.of(requests)
        assert list(found.seconds) == tiers
        wanted = [true_seconds(requests, tier) for tier in tiers[:-1]] + [true_seconds(requests, WHOLE)]
        assert list(found.seconds.values()) == pytest.approx(wanted, rel=error)
        assert sorted(found.seconds.values()) == list(found.seconds.values())


def test_a_cell_of_its_own_counts_more_than_the_sum() -> None:
    costs = learnt(SOME)
    for _ in range(31):
        costs.add(16, 32, true_seconds(16, 32) * 0.9)
    costs.import_cost(costs.export_cost(), GRID)
    assert costs.at(16, GRID).seconds[32] < 0.96 * true_seconds(16, 32)
    assert costs.at(24, GRID).seconds[32] / true_seconds(24, 32) > costs.at(16, GRID).seconds[32] / true_seconds(16, 32)


def test_why_no_budget_is_planned() -> None:
    nothing = learnt([])
    assert nothing.at(16, GRID) == Costs(16, {}, UNKNOWN)
    assert nothing.table(GRID) is None
    whole = learnt([(16, WHOLE), (64, WHOLE)])
    assert whole.at(16, GRID).why_not == UNKNOWN, "without trials nothing tells requests from tokens"
    few = learnt(SOME, times=ENOUGH - 1)
    assert few.at(16, GRID).why_not == UNKNOWN
    costs = learnt(SOME)
    assert costs.at(1, GRID).why_not == ONE_TIER
    assert costs.at(65, GRID).why_not == NOT_CAPTURED
    flat = learnt(SOME, a_token=0.0)
    assert flat.at(16, GRID).why_not == TOO_LITTLE and flat.at(16, GRID).gain < 0.03
    dear = learnt(SOME, a_token=0.0001)
    assert dear.at(16, GRID).why_not is None and dear.at(16, GRID).gain > 0.03


def test_it_changes_its_mind_when_the_cost_changes() -> None:
    costs = learnt(SOME)
    assert costs.at(16, GRID).why_not is None
    for _ in range(31):
        for requests, tokens in SOME:
            costs.add(requests, tokens, true_seconds(requests, tokens, a_token=0.0))
    costs.import_cost(costs.export_cost(), GRID)
    assert costs.at(16, GRID).why_not == TOO_LITTLE


def test_equal_cells_give_equal_decisions_on_a_rank_that_measured_other_times() -> None:
    shared = learnt(SOME).export_cost()
    assert shared != learnt(SOME, noise=0.2, outliers=0.1).export_cost()
    rank, again = (VerifyCosts(DRAFTS, SimpleNamespace(profile_dir=None)) for _ in range(2))
    rank.add(16, WHOLE, 1.0)
    for each in (rank, again):
        each.import_cost(shared, GRID)
    assert all(rank.at(requests, GRID) == again.at(requests, GRID) for requests in range(1, 65))


def test_the_table_charges_all_tokens_up_to_a_tier_alike() -> None:
    assert steps({8: 1.0, 16: 2.0, 32: 3.0}) == ([8, 9, 16, 17, 32], [1.0, 2.0, 2.0, 3.0, 3.0])
    table = learnt(SOME).table(GRID)
    assert table is not None and table["bias_seconds"] > 0
    assert table["m_probes"] == sorted(set(table["m_probes"]))
    at = table["m_probes"].index(33)
    assert table["theta_seconds"][at] == table["theta_seconds"][at + 1] > table["theta_seconds"][at - 1]


def test_what_is_saved_is_what_the_next_start_begins_from() -> None:
    costs = learnt(SOME)
    saved = loads_profile(costs.export_profile(KEY, "measured").dumps(), "a file")
    started = VerifyCosts(DRAFTS, SimpleNamespace(profile_dir=None), saved)
    assert started.from_profile == len(SOME)
    started.import_cost(started.export_cost(), GRID)
    for requests in (2, 16, 64):
        assert started.at(requests, GRID).seconds == pytest.approx(costs.at(requests, GRID).seconds)
    started.add(16, WHOLE, 5.0)  # one slow round replaces nothing
    assert (16, WHOLE, 5.0, 1) not in started.export_cost()
    assert started.export_profile(KEY, "").cells == (), "nothing was measured enough"
    assert len(started.known_profile(KEY, "").cells) == len(SOME)
    other = VerifyCosts(5, SimpleNamespace(profile_dir=None), saved)
    assert other.from_profile == 0, "blocks of another length"
    assert CostProfile(KEY, saved.cells).merged(saved).cells == saved.cells


def tried_by(trials: Trials, rounds: list[int], runs: int | None = None) -> list[int | None]:
    return [trials.next(requests, GRID, runs) for requests in rounds]


def test_trials_are_few_and_come_to_every_tier() -> None:
    trials = Trials()
    rounds = 20_000
    found = tried_by(trials, [16] * rounds, runs=128)
    tried = [tier for tier in found if tier is not None]
    assert len(tried) == trials.tried <= AT_FIRST + rounds // SHARE
    assert set(tried) == set(GRID.tried(16)) - {128}
    early = found[:1000]
    counts = [early.count(tier) for tier in set(tried)]
    assert max(counts) - min(counts) <= BURST and min(counts) >= ENOUGH
    again = tried_by(trials, [16] * rounds, runs=128)
    assert sum(tier is not None for tier in again) < rounds // SHARE, "fewer once each was tried"


def test_trials_come_in_a_row_and_only_while_the_batch_stays() -> None:
    found = tried_by(Trials(), [16] * 200)
    first = next(at for at, tier in enumerate(found) if tier is not None)
    assert found[first : first + BURST] == [found[first]] * BURST and found[first + BURST] is None
    changing = [16 + at % 2 for at in range(500)]
    assert set(tried_by(Trials(), changing)) == {None}
    trials = Trials()
    assert set(tried_by(trials, [1] * 500)) == {None}, "one tier alone"
    assert trials.launched == 500


def test_equal_rounds_give_equal_trials() -> None:
    draw = random.Random(1)
    rounds = [size for _ in range(100) for size in [draw.choice((4, 16, 64))] * draw.randrange(1, 60)]
    assert tried_by(Trials(), rounds) == tried_by(Trials(), rounds)
