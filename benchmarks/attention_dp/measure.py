"""What every way to agree comes to in every scene."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from benchmarks.attention_dp import ways
from benchmarks.attention_dp.rank import Believer, Rank
from benchmarks.attention_dp.run import Outcome, believers, run
from benchmarks.attention_dp.scenes import BUSIEST, USUAL, Scene, arrivals, scenes
from benchmarks.attention_dp.ways import DEPTHS, LAUNCH, KnowsDrafts, Way, static
from sglang_adaptive.policy.config.throughput_options import ThroughputOptions
from sglang_adaptive.simulate.cost import RoundCost
from sglang_adaptive.simulate.real.texts import Texts

WAYS: dict[str, Way] = {
    "vote": ways.vote,
    "most tokens": ways.most_tokens,
    "minimum": ways.minimum,
    "minimum, own hysteresis": ways.minimum_of_policies,
    "majority": ways.majority,
    "largest rank alone": ways.largest,
}
ORACLE = "knows the drafts"
PROBES = "vote with probes"
PROBE_BUDGET = ThroughputOptions().probe_budget
TRUE, WRONG, NONE = STARTS = ("true", "wrong", "none")
ERROR = 0.15
"""Every time of a wrong profile is off by so much, up or down."""


def cells(
    texts: Texts, cost: RoundCost, ranks: int, rounds: int, seed: int, only: str = "", start: str | None = None
) -> Iterator[dict[str, Any]]:
    """Yield each scene's outcomes as JSON builtins; runs last some *rounds* rounds of 32 requests at the launch depth.

    Rates are over that of the best static depth of the scene. *only* is a part of the names of the scenes to play.
    With *start*, one of STARTS, policies begin with that profile and know no more than served ones, and the vote alone
    is played, with probes and without.
    """
    table = cost.table(BUSIEST)
    horizon = rounds * float(table[2 * USUAL, LAUNCH])
    for scene in scenes(ranks, texts, seed):
        if only not in scene.name:
            continue
        come = arrivals(scene, texts, float(table[USUAL, LAUNCH]), horizon, seed)

        def play(
            way: Way, policies: Sequence[Believer] = (), scene: Scene = scene, come: list[list[float]] = come
        ) -> Outcome:
            own = [Rank(scene, at, texts, come[at], seed) for at in range(ranks)]
            return run(way, own, policies, table, horizon)

        fixed = {steps: play(static(steps)).rate for steps in DEPTHS}
        best = max(fixed, key=lambda steps: fixed[steps])
        if start is None:
            outcomes = {name: play(way, believers(ranks, cost)) for name, way in WAYS.items()}
            outcomes[ORACLE] = play(KnowsDrafts(table, texts, max(best, 1)))
        else:
            given = _given(cost, start, [seed, ranks, *scene.name.encode()])
            outcomes = {
                "vote": play(ways.vote, believers(ranks, given, served=True)),
                PROBES: play(ways.VoteWithProbes(), believers(ranks, given, PROBE_BUDGET, served=True)),
            }
        yield {
            "ranks": ranks,
            "scene": scene.name,
            "seed": seed,
            "best": best,
            "static": {str(steps): round(rate / fixed[best], 4) for steps, rate in fixed.items()},
            "ways": {
                name: {
                    "rate": round(outcome.rate / fixed[best], 4),
                    "switches_per_1000_rounds": round(1000 * outcome.switches / outcome.rounds, 1),
                    "rounds": outcome.rounds,
                }
                for name, outcome in outcomes.items()
            },
        }


def _given(cost: RoundCost, start: str, seed: Sequence[int]) -> RoundCost | None:
    if start == NONE:
        return None
    return cost if start == TRUE else cost.mistaken(ERROR, np.random.default_rng(seed))
