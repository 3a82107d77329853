"""Makes the controller of a scheduler on SGLang's worker."""

from __future__ import annotations

import atexit
import logging
from pathlib import Path
from typing import Any

from sglang_adaptive.policy.base import AdaptivePolicy
from sglang_adaptive.policy.config import TraceOptions
from sglang_adaptive.runtime.controller import AdaptiveController
from sglang_adaptive.runtime.round_trace import RoundTrace
from sglang_adaptive.sglang_plugin import ranks
from sglang_adaptive.sglang_plugin.configuration import configuration
from sglang_adaptive.sglang_plugin.start.profiles import CostSharing
from sglang_adaptive.sglang_plugin.start.warm_up_switch import watch_kernel_loads
from sglang_adaptive.sglang_plugin.state_builds import GraphedDevice, ranks_pad_alike


def make_controller(worker: Any, policy: AdaptivePolicy) -> AdaptiveController:
    """Return the controller of SGLang's *worker*, which starts with *policy*."""
    logging.getLogger("sglang.srt.speculative.eagle_worker_v2").addFilter(_drop_switch_lines)
    config = configuration()
    device = GraphedDevice(worker, config.prune_graphs and ranks_pad_alike())
    sharing = CostSharing(policy)
    controller = AdaptiveController(
        worker, policy, share_cost=sharing, device=device, profile_saved_at=sharing.saved_at
    )
    trace_rounds(controller, config.trace)
    watch_kernel_loads(controller)
    return controller


def trace_rounds(controller: AdaptiveController, options: TraceOptions | None) -> None:
    """Record the rounds of *controller* from now on, as *options* says; None ends that.

    Of the tensor-parallel ranks of a replica, which all have the same rounds, the first one writes. Replicas after the
    first write separate files, named after their rank.
    """
    before, controller.trace = controller.trace, None
    wanted = None
    if options is not None and ranks.is_first():
        file, replica = Path(options.file).expanduser(), ranks.replica()
        wanted = file.with_name(f"{file.name}.dp{replica}") if replica else file
    if before is not None and before.file == wanted:
        controller.trace = before
        return
    if before is not None:
        atexit.unregister(before.close)
        before.end()
    if options is not None and wanted is not None:
        controller.trace = RoundTrace(wanted, options.max_mb * 1e6)
        atexit.register(controller.trace.close)


def _drop_switch_lines(record: logging.LogRecord) -> bool:
    """Drop SGLang's log line for each switch; /server_info has the switches with their causes."""
    return not str(record.msg).startswith("Switch adaptive runtime state")
