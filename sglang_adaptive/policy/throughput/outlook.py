"""The policy's part in a vote of several ranks: what it believes of the coming round, and what came of the vote."""

from __future__ import annotations

from collections.abc import Mapping

from sglang_adaptive.policy.throughput.policy import ThroughputPolicy


def outlook(
    policy: ThroughputPolicy, batch_size: int, live: int
) -> tuple[Mapping[int, float], Mapping[int, float], int | None]:
    """Return by depth the rounds that a text of the batch takes for one of *live* steps, and the seconds of a round.

    Rounds are of all candidate steps, seconds of those that may run at *batch_size*. The third value are the steps that
    a probe wants for the coming round, None without one.
    """
    row = policy._times.at(batch_size)
    slower = dict(zip(policy.candidate_steps, policy._acceptance.slower(live), strict=True))
    return slower, {steps: seconds for _, steps, seconds in row.rungs}, policy._prober.wanted(row)


def follow(policy: ThroughputPolicy, batch_size: int, steps: int, running: int, leads: bool) -> None:
    """Take *running* for the steps of the coming round, whatever the policy promises; the ranks agreed on them.

    *batch_size* is the largest batch of them, *steps* are those without a probe. *leads* says whether this is the rank
    with most requests: its probes alone are run, and it alone considers new ones. All ranks learn from a probe and pay
    for it, or each would begin its own when its turn comes to have most requests.
    """
    policy._batch_size, policy._choice.live, policy._running = batch_size, steps, running
    policy._votes, policy._leads = True, leads
    prober, row = policy._prober, policy._times.at(batch_size)
    if leads and prober.wanted(row) in (None, running):
        prober.take_round(row)
    elif not leads:
        prober.hear(None if running == steps else running, row, policy._round)
