"""Let a policy serve a queue of recorded requests; every fixed number of steps without playing its rounds."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sglang_adaptive.lab.simulate.cost import FloatArray, SimulationError
from sglang_adaptive.lab.simulate.engine import DraftOutputs, Drivable, captured_steps, hand_over_cost
from sglang_adaptive.lab.simulate.real.scenes import Live, Work
from sglang_adaptive.lab.simulate.trace import IntArray
from sglang_adaptive.policy.base import LooksUp
from sglang_adaptive.policy.config import load_config
from sglang_adaptive.policy.observation import Lookup, RoundObservation
from sglang_adaptive.policy.throughput.lookups import FOLLOWING_SECONDS
from sglang_adaptive.runtime.round_times import RoundClock

# Let a policy serve a queue of recorded requests, in the order in which a server with overlap scheduling does.


@dataclass(frozen=True, slots=True)
class Round:
    """A round whose result has not arrived yet."""

    steps: int
    counts: list[int]
    """Accepted drafts by slot."""
    drawn: list[int]
    """What each slot would have accepted at unlimited steps."""
    requests: list[int]
    """Place in the queue of each."""
    seconds: float
    """Noise included."""
    comparable: bool
    """False where a prefill or an idle spell came before."""
    looked_up: bool
    lookups: list[Lookup]
    """By slot; empty where lookups are not followed."""


@dataclass(frozen=True, eq=False)
class Served:
    """What came of a run; seconds are those of the profile, without noise."""

    steps: IntArray
    """By round."""
    ended: FloatArray
    """Second at which each round ended."""
    tokens: int
    joined_at: FloatArray
    """By request; NaN for one that never began."""
    finished_at: FloatArray
    """By request; NaN for one that did not get done."""

    @property
    def seconds(self) -> float:
        """Length of the run."""
        return float(self.ended[-1])


def serve(policy: Drivable, live: Live, ladder: Sequence[int], table: FloatArray, clock: FloatArray) -> Served:
    """Drive *policy* until the queue of *live* is served.

    The depth of a round is asked for while the round before is still running, so the newest result that a decision
    can know is that of the round before last. *table* has the seconds of a round by batch size and steps, *clock* the
    factor by which what the policy reads differs, by round and again from its start when the run is longer. A policy
    that has lookups may use them where the texts were recorded with theirs.

    Raises:
        SimulationError: the policy asked for steps outside *ladder*, or for a depth without a graph where it has any.
    """
    seconds, noise = table.tolist(), clock.tolist()
    observer = Observer(policy) if getattr(policy, "learns", True) else None
    looks_up = policy if isinstance(policy, LooksUp) and live.work.texts.match is not None else None
    of_lookups: Sequence[int] = ()
    if looks_up is not None:
        looks_up.allow_lookups(True, behind=1)
        of_lookups = looks_up.lookup_drafts
    runnable = captured_steps(policy, (*ladder, *of_lookups))
    chosen: list[int] = []
    ended: list[float] = []
    now, flying = 0.0, None
    fresh = live.join(now)
    while not live.over:
        if not live.requests:
            now = max(now, live.next_arrival() or now)
            fresh = live.join(now)
        size = len(live.requests)
        steps = policy.get_steps_for_batch(size)
        if steps not in runnable(size):
            expected = sorted(runnable(size))
            raise SimulationError(f"round {len(chosen)}: {steps} steps chosen at batch {size}; it can run {expected}")
        if observer is not None and flying is not None:
            observer.deliver(flying)
        if getattr(policy, "cost_sync_due", False):
            hand_over_cost(policy)
        follows = looks_up is not None and size <= looks_up.lookup_requests
        drawn, took = live.drawn(), seconds[size][steps] + (FOLLOWING_SECONDS if follows else 0.0)
        heard = took * noise[len(chosen) % len(noise)]
        requests, looked_up = list(live.requests), steps in of_lookups
        found = live.lookups() if of_lookups else []
        counts = live.advance([right for _, right in found] if looked_up else drawn, steps)
        then = live.lookups() if follows else []
        told = [
            Lookup(match, min(right, count + 1), now_match)
            for (match, right), count, (now_match, _) in zip(found, counts, then, strict=False)
        ]
        flying = Round(steps, counts, drawn, requests, heard, not fresh, looked_up, told)
        now += took
        chosen.append(steps)
        ended.append(now)
        fresh = live.leave(now) | live.join(now)
    return Served(
        np.array(chosen), np.array(ended), live.tokens(), np.array(live.joined_at), np.array(live.finished_at)
    )


class Observer:
    """Hands results to a policy as a server does, their times read by the server's own clock."""

    def __init__(self, policy: Any) -> None:
        self._policy = policy
        self._observe = getattr(policy, "observe", None)
        self._arrival = 0.0
        self._clock = RoundClock(lambda: self._arrival)
        self._outputs = DraftOutputs(load_config().zero_step_extend_every)

    def deliver(self, done: Round) -> None:
        """Hand a round's result to the policy."""
        size = len(done.counts)
        if self._observe is None:
            self._policy.on_verify_complete(done.counts, size)
            return
        self._arrival += done.seconds
        if not done.comparable:
            self._clock.interrupt()
        curious = getattr(self._policy, "wants_shadow_drafts", False)
        told = self._outputs.check(done.steps, size, curious, done.looked_up)
        foretold = [min(k, 1) for k in done.drawn] if told else []
        read = self._clock.read(done.steps, size)
        extended = self._outputs.extended
        observation = RoundObservation(
            done.steps, done.counts, size, read, shadow_accepts=foretold, requests=done.requests, extended=extended,
            looked_up=done.looked_up, lookups=done.lookups,
        )  # fmt: skip
        self._observe(observation)


# Every fixed number of steps on a closed loop, without playing its rounds one by one.
#
# At fixed steps each request takes a number of rounds that nothing else has a say in. So a closed loop is a queue in
# front of as many counters as the batch has slots, and its rounds follow from the rounds of its requests.


class FixedSteps:
    """A closed loop at one fixed number of steps, on whatever round times."""

    def __init__(self, work: Work, steps: int) -> None:
        assert work.arrivals is None, "with arrivals, who decodes together depends on the round times"
        self.work, self.steps = work, steps
        self.rounds, _ = work.texts.walk(work.begin, work.end, steps)
        """Rounds that each request takes."""
        self._begun, self._length = _turns(self.rounds.tolist(), work.most)
        self._tokens = self._tokens_by_then()

    def served(self, table: FloatArray) -> Served:
        """Return the run with the round times of *table*, seconds by batch size and steps."""
        each = float(table[self.work.most, self.steps])
        ends = self._begun + self.rounds
        done = np.where(ends <= self._length, ends, np.nan)
        return Served(
            np.full(self._length, self.steps),
            np.asarray(np.arange(1, self._length + 1) * each, dtype=float),
            self._tokens,
            np.where(self._begun < self._length, self._begun, np.nan) * each,
            done * each,
        )

    def _tokens_by_then(self) -> int:
        most = np.clip(self._length - self._begun, 0, None)
        whole = most >= self.rounds
        cut = ~whole
        begin, end = self.work.begin[cut], self.work.end[cut]
        _, reached = self.work.texts.walk(begin, end, self.steps, most[cut])
        return int(self.work.lengths[whole].sum() + (reached - begin).sum())


def _turns(rounds: Sequence[int], slots: int) -> tuple[IntArray, int]:
    """Return the round before which each request begins, and the rounds until a slot stays empty."""
    free = [0] * slots
    begun = []
    for length in rounds:
        begun.append(free[0])
        heapq.heapreplace(free, free[0] + length)
    return np.array(begun, dtype=np.int64), free[0]
