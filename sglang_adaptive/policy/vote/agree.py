"""The depth that all ranks run: the one that the texts of all of them are done soonest with.

    depth = argmin_s  nanoseconds_p(s) * sum_r rounds_r(s)            p: the rank with most requests

The others wait for p in every layer that exchanges tokens, and its row has the price of a round of its batch size. So
costs need no exchange of their own, and a clock that is wrong by a factor changes nothing: the factor is in all prices
of a row. Everything is computed from the gathered integers, in integers. So ranks that have gathered the same rows run
the same steps, whatever else they have seen: nothing is remembered from one round to the next.

p may also take the round for a probe. Its own policy answers for what that costs.
"""

from __future__ import annotations

from collections.abc import Sequence

from sglang_adaptive.policy.vote.ballot import Ballot, read

MARGIN = 10
"""Thousandths that another depth must promise above the live one."""


def agree(rows: Sequence[Sequence[int]], depths: Sequence[int], launch_steps: int, margin: int = MARGIN) -> int:
    """Return the steps of the coming round from the gathered *rows*, in the order of the ranks.

    *depths* and *launch_steps* are the same on all ranks; the latter run where no rank has a say, and where the rank
    with most requests can run none of *depths*. Of equal depths the shallower runs, of equal batches the lower rank's
    prices count. The live depth, that of the same rank, is left for *margin* thousandths alone.
    """
    first = leader(rows)
    if first is None:
        return launch_steps
    slowest = read(rows[first], depths)
    ballots = [ballot for ballot in (read(row, depths) for row in rows) if ballot.counts]
    times = _times(ballots, slowest.nanoseconds, depths)
    if not times:
        return launch_steps
    best = min(times, key=lambda steps: (times[steps], steps))
    if slowest.live in times and 1000 * times[slowest.live] <= (1000 + margin) * times[best]:
        return slowest.live
    return best


def leader(rows: Sequence[Sequence[int]]) -> int | None:
    """Return the place of the rank that the others wait for, None where no rank has a say.

    It is the one with most requests among those that have a say, and the first of equal ones.
    """
    voters = [place for place, (requests, failed, *_) in enumerate(rows) if requests and not failed]
    return max(voters, key=lambda place: rows[place][0], default=None)


def probe_of(row: Sequence[int], depths: Sequence[int]) -> int | None:
    """Return the steps that the rank of *row* wants to try; None where it wants nothing, or cannot run them."""
    ballot = read(row, depths)
    runs = ballot.probe in depths and ballot.nanoseconds[depths.index(ballot.probe)]
    return ballot.probe if runs else None


def most_of(rows: Sequence[Sequence[int]], depths: Sequence[int]) -> int | None:
    """Return the most steps that fit the requests of every rank, one without a say too; None where all depths do."""
    return min((most for row in rows if (most := read(row, depths).most) is not None), default=None)


def _times(ballots: Sequence[Ballot], prices: Sequence[int], depths: Sequence[int]) -> dict[int, int]:
    """Return what the texts take, in nanoseconds / 1024, by depth that can run."""
    return {
        steps: price * sum(ballot.rounds[at] for ballot in ballots)
        for at, (steps, price) in enumerate(zip(depths, prices, strict=True))
        if price
    }
