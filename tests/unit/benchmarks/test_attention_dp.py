"""The simulation of attention DP: what it counts, and cases whose outcome is known."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.attention_dp import ways
from benchmarks.attention_dp.measure import WAYS
from benchmarks.attention_dp.rank import Rank
from benchmarks.attention_dp.run import Outcome, believers, run
from benchmarks.attention_dp.scenes import BUSIEST, Scene, arrivals, scenes
from benchmarks.attention_dp.ways import DEPTHS, Way, static
from sglang_adaptive.simulate.cost import RoundCost
from sglang_adaptive.simulate.real.texts import Texts

KINDS = ("math_reasoning", "summarization")


def texts(*accepted: int, requests: int = 8, length: int = 60) -> Texts:
    """Requests of as many kinds as numbers, in each of which every chain has so many drafts accepted."""
    kinds = np.repeat(np.arange(len(accepted)), requests)
    begin = np.arange(len(kinds)) * length
    drafts = bytes(accepted[kind] for kind in kinds for _ in range(length))
    return Texts(drafts, begin, begin + length, kinds, KINDS[: len(accepted)])


def cost(dear: float) -> RoundCost:
    """A round takes 10 ms, and *dear* milliseconds more for each step."""
    return RoundCost.from_cells({(b, s): 0.01 + 0.001 * dear * s for b in (1, BUSIEST) for s in DEPTHS})


def served(way: Way, scene: Scene, text: Texts, dear: float, seconds: float = 3.0) -> Outcome:
    price = cost(dear)
    ranks = [Rank(scene, at, text, [], 0) for at in range(len(scene.clients))]
    return run(way, ranks, believers(len(ranks), price), price.table(BUSIEST), seconds)


def test_tokens_and_seconds_of_a_static_depth_are_those_of_the_arithmetic() -> None:
    done = served(static(3), Scene("", [2, 0, 5], [None] * 3), texts(7), dear=0.0, seconds=1.0)
    assert done.rounds in (100, 101)
    assert done.request_seconds == pytest.approx(0.01 * 7 * done.rounds)
    assert done.tokens == 4 * 7 * done.rounds  # 60 tokens are 15 rounds of 4


@pytest.mark.parametrize("name", WAYS)
@pytest.mark.parametrize(("accepted", "dear", "depth"), [(7, 0.0, 7), (0, 5.0, 0)])
def test_where_all_ranks_want_the_same_every_way_runs_it(name: str, accepted: int, dear: float, depth: int) -> None:
    scene = Scene("", [4, 9], [None, None])
    found = served(WAYS[name], scene, texts(accepted), dear)
    best = served(static(depth), scene, texts(accepted), dear)
    assert found.rate > 0.9 * best.rate


def test_the_minimum_follows_one_small_rank_and_the_vote_does_not() -> None:
    scene = Scene("", [30, 2], [0, 1])
    rates = {name: served(WAYS[name], scene, texts(7, 0), dear=0.5).rate for name in ("vote", "minimum")}
    assert rates["vote"] > 1.3 * rates["minimum"]


def test_runs_repeat() -> None:
    scene = Scene("", [5, 12], [0, 1])
    assert served(ways.vote, scene, texts(5, 1), 0.5) == served(ways.vote, scene, texts(5, 1), 0.5)


def test_every_scene_is_for_all_ranks_and_only_open_ones_have_arrivals() -> None:
    text = texts(5, 1)
    for scene in scenes(8, text, 0):
        assert len(scene.clients) == len(scene.kinds) == 8 and max(scene.clients) <= BUSIEST
        come = arrivals(scene, text, 0.01, 10.0, 0)
        assert bool(sum(map(len, come))) == (scene.shares is not None)
        assert all(list(seconds) == sorted(seconds) for seconds in come)
