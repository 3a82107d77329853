"""What every way to agree comes to in every scene."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.attention_dp import ways
from benchmarks.attention_dp.rank import Rank
from benchmarks.attention_dp.run import Outcome, believers, run
from benchmarks.attention_dp.scenes import BUSIEST, USUAL, Scene, arrivals, scenes
from benchmarks.attention_dp.ways import DEPTHS, LAUNCH, KnowsDrafts, Way, static
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


def cells(
    texts: Texts, cost: RoundCost, ranks: int, rounds: int, seed: int, only: str = ""
) -> Iterator[dict[str, Any]]:
    """Yield each scene's outcomes as JSON builtins; runs last some *rounds* rounds of 32 requests at the launch depth.

    Rates are over that of the best static depth of the scene. *only* is a part of the names of the scenes to play.
    """
    table = cost.table(BUSIEST)
    horizon = rounds * float(table[2 * USUAL, LAUNCH])
    for scene in scenes(ranks, texts, seed):
        if only not in scene.name:
            continue
        come = arrivals(scene, texts, float(table[USUAL, LAUNCH]), horizon, seed)

        def play(way: Way, policies: bool, scene: Scene = scene, come: list[list[float]] = come) -> Outcome:
            own = [Rank(scene, at, texts, come[at], seed) for at in range(ranks)]
            return run(way, own, believers(ranks, cost) if policies else [], table, horizon)

        fixed = {steps: play(static(steps), False).rate for steps in DEPTHS}
        best = max(fixed, key=lambda steps: fixed[steps])
        outcomes = {name: play(way, True) for name, way in WAYS.items()}
        outcomes[ORACLE] = play(KnowsDrafts(table, texts, max(best, 1)), False)
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
