"""One number of steps for ranks that run their rounds together, as with attention DP.

Before a round each rank sends a ballot, a row of integers with the same width on every rank. With D depths, the built
numbers of steps in ascending order, a row has 5 + 2 D columns:

    column               unit                    range
    0  requests          requests that decode    0 to 2^31 - 1; 0: no vote (idle, in a prefill, absent)
    1  failed            -                       1: no vote, because the policy failed; else 0
    2  live              draft steps             steps agreed on last, without a probe
    3  probe             1 + draft steps         steps to probe in this round; 0: none
    4  most              1 + draft steps         deepest round that fits its requests' context and KV slots; 0: any
    5 ... 4 + D          1/1024 round            by depth, rounds for the text of one live round, summed over requests
    5 + D ... 4 + 2 D    nanoseconds             by depth, time of a round of this batch; 0: it cannot run here

Rounds and nanoseconds saturate at 2^40 (a billion rounds, 18 minutes) and are at least 1, except for the 0 above. A row
of zeros stands for an absent rank. From the gathered rows every rank computes the same depth,

    depth = argmin_s  nanoseconds_p(s) * sum_r rounds_r(s)            p: the rank with the most requests

The others wait for p in every layer that exchanges tokens, and p's row has the time of a round of its batch size. So
costs need no separate exchange, and a clock that is off by a factor changes nothing: the factor applies to the whole
row. The arithmetic uses integers only and keeps no state between rounds, so equal rows give equal steps on all ranks.

p may also use the round for a probe; its own policy accounts for the cost.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sglang_adaptive.policy.choice import Coming, drafted
from sglang_adaptive.runtime.controller import AdaptiveController

logger = logging.getLogger(__name__)

ROUND, SECOND, MOST_REQUESTS, MOST = 1 << 10, 10**9, (1 << 31) - 1, 1 << 40
FIELDS = 5
"""Columns before those of the depths."""


@dataclass(frozen=True, slots=True)
class Ballot:
    """A row; ``rounds`` and ``nanoseconds`` follow the order of the depths."""

    requests: int
    failed: bool
    live: int
    rounds: Sequence[int]
    nanoseconds: Sequence[int]
    probe: int | None = None
    """Steps to run once instead of the agreed ones."""

    most: int | None = None
    """The most steps that fit the rank's requests; None if all depths do."""

    @property
    def counts(self) -> bool:
        return self.requests > 0 and not self.failed

    def row(self) -> list[int]:
        probe, most = (0 if steps is None else steps + 1 for steps in (self.probe, self.most))
        requests = min(self.requests, MOST_REQUESTS)
        return [requests, int(self.failed), self.live, probe, most, *self.rounds, *self.nanoseconds]


def width(depths: Sequence[int]) -> int:
    """Return the columns of a row."""
    return FIELDS + 2 * len(depths)


def silent(depths: Sequence[int], live: int = 0, requests: int = 0, failed: bool = False) -> Ballot:
    """Return the ballot of a rank without a vote: it has no *requests*, or its policy *failed*."""
    nothing = (0,) * len(depths)
    return Ballot(requests, failed, live, nothing, nothing)


def forced(depths: Sequence[int], live: int, requests: int, steps: int) -> Ballot:
    """Return the ballot of a rank that can run only *steps*, as when an operator holds them."""
    only = tuple(int(depth == steps) for depth in depths)
    return Ballot(requests, False, live, only, only)


def believed(
    depths: Sequence[int],
    live: int,
    requests: int,
    rounds: Mapping[int, float],
    seconds: Mapping[int, float],
    probe: int | None = None,
) -> Ballot:
    """Return the ballot of a policy that expects, by depth, *rounds* per *live* round and *seconds* per round.

    A depth without seconds cannot run; one without rounds counts like the live one. Raises ValueError or OverflowError
    if an expectation is not a number, which means that the policy has failed.
    """
    return Ballot(
        requests,
        False,
        live,
        tuple(_whole(requests * rounds.get(steps, 1.0) * ROUND) for steps in depths),
        tuple(_whole(seconds[steps] * SECOND) if steps in seconds else 0 for steps in depths),
        probe,
    )


def read(row: Sequence[int], depths: Sequence[int]) -> Ballot:
    """Return the ballot of a row; raises ValueError if it is not ``width(depths)`` wide."""
    if len(row) != width(depths):
        raise ValueError(f"a ballot of {len(row)} columns; expected {width(depths)} for the depths {list(depths)}")
    first = FIELDS + len(depths)
    probe, most = (column - 1 if column else None for column in row[3:FIELDS])
    return Ballot(row[0], bool(row[1]), row[2], tuple(row[FIELDS:first]), tuple(row[first:]), probe, most)


@dataclass(frozen=True, slots=True)
class Agreement:
    """The result of a vote."""

    steps: int
    """Agreed steps without a probe; the launch steps if no rank votes."""
    running: int
    """Steps of the coming round: ``steps``, or those of the leader's probe."""
    leader: int | None
    """Index of the rank that the others wait for: the first voting rank with the most requests. None without one."""
    most: int | None
    """The most steps that fit the requests of every rank, voting or not; None if all depths do."""


def agree(rows: Sequence[Sequence[int]], depths: Sequence[int], launch_steps: int) -> Agreement:
    """Return the result of the gathered *rows*, which are in rank order.

    *depths* and *launch_steps* are the same on all ranks. The launch steps run if no rank votes or if the leader can
    run none of *depths*. Ties go to the leader's live depth, then to the shallower one. Raises ValueError if a row is
    not ``width(depths)`` wide.
    """
    ballots = [read(row, depths) for row in rows]
    voters = [place for place, ballot in enumerate(ballots) if ballot.counts]
    leader = max(voters, key=lambda place: ballots[place].requests, default=None)
    steps = running = launch_steps
    if leader is not None:
        slowest = ballots[leader]
        times = {
            depth: price * sum(ballots[place].rounds[at] for place in voters)
            for at, (depth, price) in enumerate(zip(depths, slowest.nanoseconds, strict=True))
            if price
        }
        if times:
            steps = min(times, key=lambda depth: (times[depth], depth != slowest.live, depth))
        running = slowest.probe if slowest.probe in times else steps
    most = min((ballot.most for ballot in ballots if ballot.most is not None), default=None)
    return Agreement(steps, running, leader, most)


def _whole(value: float) -> int:
    return min(MOST, max(1, round(value)))


class JointSteps:
    """Votes for a controller before each round, and sets the agreed steps in it.

    All ranks have the same depths and launch steps. The launch steps run until the first gather.
    """

    def __init__(self, controller: AdaptiveController, rank: int) -> None:
        """*controller* has all its runtime states; from now on it runs only agreed steps.

        *rank* is the index of its row among the gathered ones.
        """
        self._controller, self._rank = controller, rank
        self.depths = controller.states.tiers
        self._agreed = controller.states.launch.steps
        """Steps agreed on last, without a probe."""
        controller.agreed = controller.states.launch, None
        self.largest = 0
        """The largest batch of any rank in the coming round."""

    def row(self, requests: int) -> list[int]:
        """Return the columns to send before a round of *requests*, 0 without a decode batch; never raises."""
        try:
            ballot = self._ballot(requests)
        except Exception as error:
            self._controller.policy_failed(error)
            ballot = silent(self.depths, requests=requests, failed=True)
        most = self._controller.most_steps if requests else None
        return replace(ballot, most=None if most is None else max(0, most)).row()

    def take(self, rows: Sequence[Sequence[int]]) -> None:
        """Set the steps of the coming round from the *rows* of all ranks, and inform the policy; never raises."""
        controller = self._controller
        try:
            self.largest = max(requests for requests, *_ in rows)
            found = agree(rows, self.depths, controller.states.launch.steps)
        except Exception:  # rows are the same on all ranks, so all ranks fail alike
            controller.agreed = controller.states.launch, None
            logger.exception("adaptive: the gathered rows could not be counted; this round runs the launch steps")
            return
        probes = found.running != found.steps
        ended = found.steps == self._agreed and controller.states.live.probe
        choice = drafted(found.running, probes, "probe" if probes or ended else "")
        controller.agreed = choice, found.most
        if found.leader is None:
            return
        self._agreed = found.steps
        if controller.degraded is None:
            try:
                controller.policy.follow(self.largest, choice, found.steps, found.leader == self._rank)
            except Exception as error:  # only this rank failed, so the steps stay
                self._controller.policy_failed(error)

    def _ballot(self, requests: int) -> Ballot:
        controller, depths, live = self._controller, self.depths, self._agreed
        if not requests:
            return silent(depths, live)
        warms_up = controller.warm_up_choice(requests)
        # What overrides this rank's policy: the warm-up, or an operator.
        steps = controller.forced_steps if warms_up is None else warms_up.steps
        if steps is not None:
            return forced(depths, live, requests, steps)
        if controller.degraded is not None:
            return silent(depths, live, requests, failed=True)
        outlook = controller.policy.outlook(requests, live)
        if outlook is not None:
            return believed(depths, live, requests, *outlook)
        return forced(depths, live, requests, controller.policy.choose(Coming(requests)).steps)
