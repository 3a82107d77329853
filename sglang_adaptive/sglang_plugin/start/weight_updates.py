"""After a weight update: recaptures the graphs of all steps, and lowers the evidence behind acceptance.

SGLang 0.5.23 recaptures only the graphs of the live steps when an update requests it (``recapture_cuda_graph``); the
others would replay with old weight addresses. Acceptance was measured with the old weights.
"""

from __future__ import annotations

import logging
from typing import Any

from sglang_adaptive.policy.base import LearnsAcceptance
from sglang_adaptive.runtime.controller import AdaptiveController

logger = logging.getLogger(__name__)


def follow_update(controller: AdaptiveController, result: Any, request: Any) -> None:
    """Recapture all steps if requested, and lower the evidence behind acceptance.

    The evidence is lowered even if the update failed: success may differ between ranks, and all must decide alike.
    """
    try:
        if result.success and getattr(request, "recapture_cuda_graph", False):
            rebuild(controller)
        doubt_acceptance(controller, type(request).__name__)
    except Exception:
        logger.exception("adaptive: the work after a weight update failed; depths may run with old graphs")


def rebuild(controller: AdaptiveController) -> None:
    """Build every runtime state again, with graphs for the same batch sizes; the live steps stay live.

    Does nothing without graphs, because only graphs keep addresses, or with a single state, which SGLang recaptures.
    """
    graphs, live = controller.built.graphs, controller.worker.speculative_num_steps
    others = [steps for steps in controller.tiers if steps != live]
    if not others or not any(graphs.values()):
        return
    for steps in reversed(controller.tiers):
        sizes = graphs[steps]
        controller.register(
            controller.worker.build_adaptive_runtime_state(
                speculative_num_steps=steps,
                speculative_num_draft_tokens=steps + 1,
                cuda_graph_bs=None if sizes is None else list(sizes),
            )
        )
    # The worker ignores a state of its live steps, so switch to others first.
    states = {state.speculative_num_steps: state for state in controller.states}
    for steps in (others[0], live):
        controller.worker.apply_runtime_state(states[steps])
    logger.info("adaptive: new weights, recaptured the graphs of %d depths", len(states))


def doubt_acceptance(controller: AdaptiveController, cause: str) -> None:
    """Make the policy keep its acceptance estimate with little evidence behind it, if it supports that."""
    controller.interrupt()
    if isinstance(controller.params, LearnsAcceptance):
        controller.params.doubt_acceptance()
        logger.info("adaptive: new weights (%s), what was learned about the draft counts for little from now on", cause)
