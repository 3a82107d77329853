"""Lets a policy serve a queue of recorded requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sglang_adaptive.lab.simulate.cost import FloatArray
from sglang_adaptive.lab.simulate.engine import Driver
from sglang_adaptive.lab.simulate.real.scenes import Live
from sglang_adaptive.lab.simulate.trace import IntArray
from sglang_adaptive.policy.base import AdaptivePolicy
from sglang_adaptive.policy.choice import Coming, Source
from sglang_adaptive.policy.observation import Lookup
from sglang_adaptive.policy.throughput.lookups import TRACKING_SECONDS


@dataclass(frozen=True, eq=False)
class Served:
    """The result of a run; seconds are those of the profile, without noise."""

    steps: IntArray
    """By round."""
    ended: FloatArray
    """Second at which each round ended."""
    tokens: int
    joined_at: FloatArray
    """By request; NaN if it never started."""
    finished_at: FloatArray
    """By request; NaN if it did not finish."""

    @property
    def seconds(self) -> float:
        """Length of the run."""
        return float(self.ended[-1])


def serve(
    policy: AdaptivePolicy, live: Live, ladder: Sequence[int], table: FloatArray, clock: FloatArray,
    tracking: float = TRACKING_SECONDS,
) -> Served:  # fmt: skip
    """Run *policy* until the queue of *live* is served.

    *table* has the seconds of a round by batch size and steps, *clock* the factor by which the policy's reading
    differs, by round and repeated when the run is longer. A policy with lookups may use them if the texts were recorded
    with lookups; tracking texts then adds *tracking* seconds to a round.

    Raises:
        SimulationError: as `Driver.choose` does.
    """
    seconds, noise = table.tolist(), clock.tolist()
    policy.allow_lookups(live.work.texts.match is not None, behind=1)
    driver = Driver(policy, ladder)
    chosen: list[int] = []
    ended: list[float] = []
    now = 0.0
    fresh = live.join(now)
    while not live.over:
        if not live.requests:
            now = max(now, live.next_arrival)
            fresh = live.join(now)
        size, requests = len(live.requests), list(live.requests)
        choice = driver.choose(Coming(size, requests))
        steps, looked_up = choice.steps, choice.source is Source.LOOKUP
        follows = policy.tracks_texts and size <= policy.lookup_requests
        drawn, took = live.drawn(), seconds[size][steps] + (tracking if follows else 0.0)
        heard = took * noise[len(chosen) % len(noise)]
        found = live.lookups() if policy.lookup_kinds else []
        counts = live.advance([right for _, right in found] if looked_up else drawn, steps)
        then = live.lookups() if follows else []
        told = [
            Lookup(match, min(right, count + 1), now_match)
            for (match, right), count, (now_match, _) in zip(found, counts, then, strict=False)
        ]
        if driver.learns:
            driver.started(choice, counts, drawn, heard, not fresh, requests, told)
        now += took
        chosen.append(steps)
        ended.append(now)
        fresh = live.leave(now) | live.join(now)
    return Served(
        np.array(chosen), np.array(ended), live.tokens(), np.array(live.joined_at), np.array(live.finished_at)
    )
