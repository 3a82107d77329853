"""The scheduler's part of the warm-up: the message that begins and ends it, and kernels that load after it."""

from __future__ import annotations

import logging
from typing import Any

from sglang_adaptive.runtime.controller import AdaptiveController

logger = logging.getLogger(__name__)

WARM_UP_KEY = "adaptive_warm_up"
BEGIN, END = 1, 0
KEPT_NAMES = 32
"""The most names of late kernels that are kept."""


class WarmUpSwitch:
    """Handler of ``adaptive_warm_up`` in /set_internal_state: SGLang calls ``validate``, then ``apply``.

    For SGLang serving begins when the scheduler enters its loop, before any request can run. Here it begins when the
    warm-up ends, because the warm-up is meant to load kernels.
    """

    def __init__(self, controller: AdaptiveController | None) -> None:
        self._controller = controller

    def validate(self, key: str, value: Any) -> None:
        """Raise SGLang's UpdateRejected unless *value* is BEGIN or END."""
        from sglang.srt.managers.scheduler_components.internal_state import UpdateRejected

        if self._controller is None:
            raise UpdateRejected(f"{key}: this server's speculation is not adaptive")
        if value not in (BEGIN, END):
            raise UpdateRejected(f"{key}: got {value!r}; expected {BEGIN} or {END}")

    def apply(self, key: str, value: Any) -> None:
        """Begin a pass of the warm-up, or end it."""
        from sglang.srt.utils import triton_load_watch

        assert self._controller is not None, "validate came first"
        if value == BEGIN:
            triton_load_watch._serving_started = False
            self._controller.begin_warm_up()
        else:
            self._controller.end_warm_up()
            triton_load_watch.mark_serving_started()


def watch_kernel_loads(controller: AdaptiveController) -> None:
    """List the Triton kernels that load after serving has begun in the controller's start-up report."""
    try:
        from triton import knobs

        chain = knobs.runtime.kernel_load_start_hook
    except (ImportError, AttributeError):
        return
    from sglang.srt.utils import triton_load_watch

    late: list[str] = []
    controller.startup.late_kernel_loads = late

    def on_load(module: Any, function: Any, name: str, metadata_group: Any, hash: Any) -> None:
        if triton_load_watch._serving_started and len(late) < KEPT_NAMES:
            late.append(name)
            logger.warning("adaptive: the Triton kernel %s loaded while serving", name)

    chain.add(on_load)
