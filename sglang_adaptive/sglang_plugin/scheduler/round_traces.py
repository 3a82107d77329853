"""Chooses the process that records its rounds, and the file."""

from __future__ import annotations

import atexit
from pathlib import Path

from sglang_adaptive.policy.config.trace_options import TraceOptions
from sglang_adaptive.runtime.controller import AdaptiveController
from sglang_adaptive.runtime.round_trace import RoundTrace


def trace_rounds(controller: AdaptiveController, options: TraceOptions | None) -> None:
    """Record the rounds of *controller* from now on, as *options* says; None ends that.

    Of the tensor-parallel ranks of a replica, which all have the same rounds, the first one writes. Replicas after the
    first write separate files, named after their rank.
    """
    from sglang.srt.runtime_context import get_parallel

    before, controller.trace = controller.trace, None
    parallel = get_parallel()
    wanted = None
    if options is not None and parallel.tp_group.rank_in_group == 0:
        file = Path(options.file).expanduser()
        replica = parallel.dp_rank or 0
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
