"""One rank's part in steps that several ranks choose together: its ballot, and the result of the vote."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from sglang_adaptive.policy.base import Votes
from sglang_adaptive.policy.vote import Ballot, agree, believed, forced, silent
from sglang_adaptive.runtime.controller import AdaptiveController

logger = logging.getLogger(__name__)


class JointSteps:
    """Votes for a controller before each round, and sets the agreed steps in it.

    All ranks have the same depths and launch steps. The launch steps run until the first gather.
    """

    def __init__(self, controller: AdaptiveController, rank: int) -> None:
        """*controller* has all its runtime states; from now on it runs only agreed steps.

        *rank* is the index of its row among the gathered ones.
        """
        self._controller, self._rank = controller, rank
        self.depths = controller.tiers
        self._agreed = controller.launch_steps
        controller.agreed = self._agreed, None
        self.largest = 0
        """The largest batch of any rank in the coming round."""

    def row(self, requests: int) -> list[int]:
        """Return the columns to send before a round of *requests*, 0 without a decode batch; never raises."""
        try:
            ballot = self._ballot(requests)
        except Exception as error:
            self._fail(error)
            ballot = silent(self.depths, requests=requests, failed=True)
        most = self._controller.most_steps if requests else None
        return replace(ballot, most=None if most is None else max(0, most)).row()

    def take(self, rows: Sequence[Sequence[int]]) -> None:
        """Set the steps of the coming round from the *rows* of all ranks, and inform the policy; never raises."""
        controller = self._controller
        try:
            self.largest = max(requests for requests, *_ in rows)
            found = agree(rows, self.depths, controller.launch_steps)
        except Exception:  # rows are the same on all ranks, so all ranks fail alike
            controller.agreed = controller.launch_steps, None
            logger.exception("adaptive: the gathered rows could not be counted; this round runs the launch steps")
            return
        controller.agreed = found.running, found.most
        if found.leader is None:
            return
        self._agreed, policy = found.steps, controller.params
        if isinstance(policy, Votes) and controller._degraded is None:
            try:
                policy.follow(self.largest, found.steps, found.running, found.leader == self._rank)
            except Exception as error:  # only this rank failed, so the steps stay
                self._fail(error)

    def _fail(self, error: Exception) -> None:
        if self._controller._degraded is None:
            self._controller.policy_failed(error)

    def _ballot(self, requests: int) -> Ballot:
        controller, depths, live = self._controller, self.depths, self._agreed
        if not requests:
            return silent(depths, live)
        steps = self._own_steps(requests)
        if steps is not None:
            return forced(depths, live, requests, steps)
        if controller._degraded is not None:
            return silent(depths, live, requests, failed=True)
        policy = controller.params
        if isinstance(policy, Votes):
            return believed(depths, live, requests, *policy.outlook(requests, live))
        return forced(depths, live, requests, policy.get_steps_for_batch(requests))

    def _own_steps(self, requests: int) -> int | None:
        """Return the steps that override this rank's policy: the warm-up's or an operator's; None without."""
        controller = self._controller
        if controller._warm_up is not None:
            if not controller._warm_up.overdue:
                return controller._warm_up.choose(requests)
            controller.give_up_warm_up()
        return controller._forced_steps
