"""The simulator's ground truth: acceptance, cost, load."""

from __future__ import annotations

import numpy as np
import pytest

from sglang_adaptive.lab.simulate.cost import RoundCost, SimulationError
from sglang_adaptive.lab.simulate.trace import (
    LONGEST,
    SHORTEST,
    closed_loop,
    draw_accepted,
    expected_tokens,
    hazards,
    open_loop,
    random_batch,
    switching,
)

CELLS = {(1, 0): 1.0, (1, 2): 2.0, (4, 0): 4.0, (4, 2): 8.0}


@pytest.mark.parametrize(("p", "decay"), [(0.0, 1.0), (0.3, 1.0), (0.8, 0.93), (1.0, 1.0)])
def test_expected_tokens_agree_with_monte_carlo(p: float, decay: float) -> None:
    draws, depth = 200_000, 7
    h = hazards(p, decay, depth)
    rng = np.random.default_rng(5)
    drawn = draw_accepted(np.broadcast_to(h, (draws, depth)), rng.random((draws, depth), dtype=np.float32))
    for steps, expected in enumerate(expected_tokens(h)):
        tokens = 1 + np.minimum(drawn, steps)
        tolerance = 5 * tokens.std() / np.sqrt(draws) + 1e-9
        assert tokens.mean() == pytest.approx(expected, abs=tolerance)


def test_cost_is_the_measured_cell_and_linear_between() -> None:
    table = RoundCost.from_cells(CELLS).table(6)
    assert [table[1, 0], table[4, 2]] == [1.0, 8.0]
    assert table[1, 1] == pytest.approx(1.5)
    assert table[2, 2] == pytest.approx(4.0)
    assert table[6].tolist() == table[4].tolist()


def test_a_mistaken_profile_is_off_by_exactly_its_error_in_every_cell() -> None:
    cost = RoundCost.from_cells(CELLS)
    ratio = cost.mistaken(0.15, np.random.default_rng(1)).seconds / cost.seconds
    assert np.abs(ratio - 1).ravel().tolist() == pytest.approx([0.15] * 4)


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ({}, "no cells"),
        ({(1, 0): 1.0, (1, 1): 1.0, (2, 0): 1.0}, "batch_size 2, steps 1 missing"),
        ({(1, 1): 1.0}, "batch_size 1, steps 0 missing"),
        ({(1, 0): 1.0}, "no steps but 0"),
        ({(1, 0): 1.0, (1, 1): 0.0}, "not positive"),
    ],
)
def test_a_profile_that_is_no_grid_is_refused(cells: dict[tuple[int, int], float], message: str) -> None:
    with pytest.raises(SimulationError, match=message):
        RoundCost.from_cells(cells, "file")


def test_a_closed_loop_holds_its_target_and_replaces_who_leaves() -> None:
    target = np.array([3] * 400 + [8] * 400 + [2] * 400)
    who = closed_loop(target, np.random.default_rng(2), 8)
    assert who.batch.tolist() == target.tolist()
    assert who.arrivals[400] >= 5
    assert who.arrivals[1:400].sum() > 0
    for now, row in enumerate(who.requests):
        assert (row[: target[now]] >= 0).all() and (row[target[now] :] == -1).all()
    assert who.requests.max() + 1 == who.arrivals.sum()


def test_an_open_loop_never_runs_empty_nor_over_its_limit() -> None:
    rate = np.repeat([0.001, 3.0], 500)
    who = open_loop(rate, np.random.default_rng(3), 16)
    assert (who.batch.min(), who.batch.max()) == (1, 16)
    assert who.batch[:500].mean() < 4 < 12 < who.batch[600:].mean()


def test_regimes_have_the_stated_lengths() -> None:
    rng = np.random.default_rng(4)
    found = switching(20_000, rng, rng.random)
    lengths = np.diff((0, *found.changes))
    assert lengths.min() >= SHORTEST and lengths.max() <= LONGEST
    changed = np.flatnonzero(np.diff(found.values)) + 1
    assert changed.tolist() == list(found.changes)


def test_batches_cover_the_whole_range() -> None:
    rng = np.random.default_rng(6)
    drawn = {random_batch(rng, 64) for _ in range(4000)}
    assert drawn == set(range(1, 65))
