"""One rank's part in steps that several ranks choose together: its ballot, and the result of the vote."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from sglang_adaptive.policy.choice import Coming, drafted
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
            self._fail(error)
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
                self._fail(error)

    def _fail(self, error: Exception) -> None:
        if self._controller.degraded is None:
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
