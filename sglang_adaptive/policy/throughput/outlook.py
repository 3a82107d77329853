"""What the policy believes of the coming round at every depth, for a vote of several ranks."""

from __future__ import annotations

from collections.abc import Mapping

from sglang_adaptive.policy.throughput.policy import ThroughputPolicy


def outlook(policy: ThroughputPolicy, batch_size: int, live: int) -> tuple[Mapping[int, float], Mapping[int, float]]:
    """Return by depth the rounds that a text of the batch takes for one of *live* steps, and the seconds of a round.

    Rounds are of all candidate steps, seconds of those that may run at *batch_size*.
    """
    slower = policy._acceptance.slower(live)
    rungs = policy._times.at(batch_size).rungs
    return dict(zip(policy.candidate_steps, slower, strict=True)), {steps: seconds for _, steps, seconds in rungs}
