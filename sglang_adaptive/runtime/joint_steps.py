"""One rank's part in steps that several ranks choose together: its ballot, and what the gathered rows come to."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from sglang_adaptive.policy.throughput.outlook import outlook
from sglang_adaptive.policy.throughput.policy import ThroughputPolicy
from sglang_adaptive.policy.vote.agree import agree
from sglang_adaptive.policy.vote.ballot import Ballot, believed, forced, silent
from sglang_adaptive.runtime.rounds import Rounds

logger = logging.getLogger(__name__)


class JointSteps:
    """Speaks for a controller before each round, and sets the agreed steps in it.

    All ranks have the same depths and launch steps. Until the first gather the launch steps run.
    """

    def __init__(self, controller: Rounds) -> None:
        """*controller* has all its runtime states; from now on it runs agreed steps alone."""
        self._controller = controller
        self.depths = controller.tiers
        self._launch_steps = controller.worker.speculative_num_steps
        controller.agreed_steps = self._launch_steps

    def row(self, requests: int) -> list[int]:
        """Return the columns to send before a round of *requests*, 0 without a decode batch; it never raises."""
        try:
            return self._ballot(requests).row()
        except Exception as error:
            controller = self._controller
            if controller._degraded is None:
                controller._degrade(f"policy {controller.params.name} raised {type(error).__name__}: {error}", error)
            return silent(self.depths, requests=requests, failed=True).row()

    def take(self, rows: Sequence[Sequence[int]]) -> None:
        """Set the steps of the coming round from the *rows* of all ranks."""
        try:
            self._controller.agreed_steps = agree(rows, self.depths, self._launch_steps)
        except Exception:  # the rows are the same on all ranks, and so is what goes wrong with them
            self._controller.agreed_steps = self._launch_steps
            logger.exception("adaptive: the gathered rows could not be counted; this round runs the launch steps")

    def _ballot(self, requests: int) -> Ballot:
        controller, depths = self._controller, self.depths
        live = controller.worker.speculative_num_steps
        if not requests:
            return silent(depths, live)
        steps = self._own_steps(requests)
        if steps is not None:
            return forced(depths, live, requests, steps)
        if controller._degraded is not None:
            return silent(depths, live, requests, failed=True)
        policy = controller.params
        if isinstance(policy, ThroughputPolicy):
            return believed(depths, live, requests, *outlook(policy, requests, live))
        return forced(depths, live, requests, policy.get_steps_for_batch(requests))

    def _own_steps(self, requests: int) -> int | None:
        """Return the steps that this rank wants whatever its policy says: the warm-up's, or an operator's."""
        controller = self._controller
        if controller._warm_up is not None:
            if not controller._warm_up.overdue:
                return controller._warm_up.choose(requests)[0]
            controller._warm(controller._warm_up, requests)  # ends it
        return controller._forced_steps
