"""What has to follow new weights: graphs of every depth, and beliefs about the draft that are still true.

SGLang 0.5.23 recaptures the graphs of the live depth alone when an update asks for it (``recapture_cuda_graph``); the
others would replay with weights that moved. And how often drafts are accepted was learnt with the weights before.
"""

from __future__ import annotations

import logging
from typing import Any

from sglang_adaptive.runtime.controller import AdaptiveController
from sglang_adaptive.sglang_plugin.scheduler.worker import controller_of

logger = logging.getLogger(__name__)


def after_update(result: Any, manager: Any, request: Any) -> Any:
    """After an update of weights: recapture every depth if it asked for that, and doubt what drafts were worth.

    The doubt does not depend on the update's success, which may differ between ranks: all must choose alike.
    """
    controller = controller_of(manager.draft_worker)
    if controller is None:
        return result
    try:
        if result.success and getattr(request, "recapture_cuda_graph", False):
            rebuild(controller)
        doubt_acceptance(controller, type(request).__name__)
    except Exception:
        logger.exception("adaptive: what follows an update of weights failed; depths may run with old graphs")
    return result


def rebuild(controller: AdaptiveController) -> None:
    """Build the runtime state of every depth anew, graphs for the same batch sizes; the live depth stays live.

    With graphs only: without them nothing keeps an address. One depth alone is SGLang's own to recapture.
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
    # The worker ignores a state of the depth that it runs, so it goes there by way of another.
    states = {state.speculative_num_steps: state for state in controller.states}
    for steps in (others[0], live):
        controller.worker.apply_runtime_state(states[steps])
    logger.info("adaptive: new weights, recaptured the graphs of %d depths", len(states))


def doubt_acceptance(controller: AdaptiveController, cause: str) -> None:
    """Let the policy keep its estimate of acceptance with little evidence behind it, where it has such a notion."""
    controller.interrupt()
    doubt = getattr(controller.params, "doubt_acceptance", None)
    if doubt is not None:
        doubt()
        logger.info("adaptive: new weights (%s), what was learnt of the draft counts for little from here on", cause)
