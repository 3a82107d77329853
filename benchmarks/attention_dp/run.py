"""Rounds of all ranks in step: each takes as long as the profile says for the largest batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.attention_dp.rank import Believer, Rank, Timed
from benchmarks.attention_dp.ways import DEPTHS, LAUNCH, Way
from sglang_adaptive.policy.config.throughput_options import ThroughputOptions
from sglang_adaptive.policy.profile.profile import CostProfile, ProfileCell, ProfileKey, ordered
from sglang_adaptive.policy.throughput.policy import ThroughputPolicy
from sglang_adaptive.simulate.acceptance import FloatArray
from sglang_adaptive.simulate.cost import RoundCost


@dataclass
class Outcome:
    """What a run came to."""

    tokens: int = 0
    rounds: int = 0
    switches: int = 0
    request_seconds: float = 0.0
    """Seconds that requests spent, summed, those without a place included."""

    @property
    def rate(self) -> float:
        """Tokens a second that a request sees."""
        return self.tokens / self.request_seconds


def believers(ranks: int, cost: RoundCost | None, probe_budget: float = 0.0, served: bool = False) -> list[Believer]:
    """Return a fresh policy for each rank, with *cost* for its profile, None for none; *served* as in Believer."""
    profile = None
    if cost is not None:
        cells = ordered(ProfileCell(batch, steps, seconds) for (batch, steps), seconds in cost.cells().items())
        profile = CostProfile(ProfileKey("target", "draft", "gpu", 1, 1, "fa3"), cells)
    options = ThroughputOptions(DEPTHS, probe_budget=probe_budget)
    return [Believer(ThroughputPolicy(LAUNCH, options, profile), DEPTHS, seed, served) for seed in range(ranks)]


def run(way: Way, ranks: Sequence[Rank], policies: Sequence[Believer], table: FloatArray, horizon: float) -> Outcome:
    """Serve for *horizon* seconds of the profile; *policies* are empty for a way that needs none."""
    done, now, live = Outcome(), 0.0, LAUNCH
    while now < horizon:
        prefill = any([rank.join(now, now / horizon) for rank in ranks])
        batch = max(rank.requests for rank in ranks)
        if not batch:
            now = min((come for rank in ranks if (come := rank.next_arrival) is not None), default=horizon)
            continue
        steps = way(ranks, policies, live)
        done.switches += steps != live
        live, took = steps, float(table[batch, steps])
        done.request_seconds += took * sum(rank.present for rank in ranks)
        for at, rank in enumerate(ranks):
            drawn = rank.drawn()
            counts, ids, tokens = rank.advance(drawn, steps)
            done.tokens += tokens
            if policies:
                policies[at].tell(steps, drawn, counts, ids, Timed(batch, took, prefill))
        done.rounds += 1
        now += took
    return done
