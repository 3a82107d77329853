"""After a weight update: recaptures the graphs of all steps, and lowers the evidence behind acceptance.

SGLang 0.5.23 recaptures only the graphs of the live steps when an update requests it (``recapture_cuda_graph``); the
others would replay with old weight addresses. Acceptance was measured with the old weights.
"""

from __future__ import annotations

import logging
from typing import Any

from sglang_adaptive.runtime.controller import AdaptiveController

logger = logging.getLogger(__name__)


def follow_update(controller: AdaptiveController, result: Any, request: Any) -> None:
    """Recapture all steps if requested, and lower the evidence behind acceptance.

    The evidence is lowered even if the update failed: success may differ between ranks, and all must decide alike.
    """
    try:
        if result.success and getattr(request, "recapture_cuda_graph", False):
            rebuilt = controller.states.rebuild()
            if rebuilt:
                logger.info("adaptive: new weights, recaptured the graphs of %d depths", rebuilt)
        doubt_acceptance(controller, type(request).__name__)
    except Exception:
        logger.exception("adaptive: the work after a weight update failed; depths may run with old graphs")


def doubt_acceptance(controller: AdaptiveController, cause: str) -> None:
    """Make the policy keep its acceptance estimate with little evidence behind it, if it supports that."""
    controller.interrupt()
    if controller.policy.doubt_acceptance():
        logger.info("adaptive: new weights (%s), what was learned about the draft counts for little from now on", cause)
