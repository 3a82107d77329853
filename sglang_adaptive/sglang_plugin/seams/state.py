"""What SGLang tells: metrics, counts of a response, and /server_info and /set_internal_state in the scheduler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang_adaptive.sglang_plugin.hooks import SRT, Process, around, needs, to_stages
from sglang_adaptive.sglang_plugin.stage import Stage

# -- metrics -------------------------------------------------------------------------------------------------------


_COLLECTOR = SRT + "observability.metrics_collector.SchedulerMetricsCollector"


@around(
    SRT + "managers.tokenizer_manager.TokenizerManager._calculate_spec_decoding_metrics",
    "self meta_info recv_obj i",
    process=Process.HTTP,
)
def request_metrics(
    original: Callable[..., None], manager: Any, meta_info: dict[str, Any], recv_obj: Any, i: int
) -> None:
    """Add a request's counts to its response."""
    from sglang_adaptive.sglang_plugin.stages import reporting

    original(manager, meta_info, recv_obj, i)
    reporting.correct_request_metrics(meta_info, recv_obj, i)


to_stages(
    Stage.report_decode,
    SRT + "managers.scheduler_components.metrics_reporter.SchedulerMetricsReporter.report_decode_stats",
    "self",
)
to_stages(Stage.init_metrics, SRT + "managers.scheduler.Scheduler.init_metrics_reporter", "self")
to_stages(Stage.log_stats, _COLLECTOR + ".log_stats", "self stats")


# -- /server_info and /set_internal_state --------------------------------------------------------------------------


_STATE = SRT + "managers.scheduler_components.internal_state.SchedulerInternalStateController."


@around(_STATE + "get_internal_state", "self recv_req")
def get_internal_state(original: Callable[..., Any], controller: Any, recv_req: Any) -> Any:
    """Answer a request for the internal state, with how the server adapts or why not, or for only our part of it."""
    from sglang_adaptive.sglang_plugin.admin.server_info import answer

    return answer(original, controller, recv_req)


@around(_STATE + "set_internal_state", "self recv_req")
def set_internal_state(original: Callable[..., Any], controller: Any, recv_req: Any) -> Any:
    """Handle a message of /set_internal_state, which may carry a configuration or a report of the audit."""
    from sglang_adaptive.sglang_plugin.admin.handlers import unpack

    unpack(recv_req)
    return original(controller, recv_req)


@around(_STATE + "_update_handlers", "self")
def update_handlers(original: Callable[..., dict[str, Any]], controller: Any) -> dict[str, Any]:
    """List the handlers of /set_internal_state."""
    from sglang_adaptive.sglang_plugin.admin.handlers import handlers

    return {**original(controller), **handlers()}


needs(
    """
    observability.metrics_collector.SchedulerMetricsCollector.__init__: labels
    observability.metrics_collector.SchedulerMetricsCollector._counter_cls
    observability.metrics_collector.SchedulerMetricsCollector._gauge_cls
    observability.metrics_collector.SchedulerMetricsCollectorContext: collector current_scheduler_metrics_enabled
    managers.scheduler_components.internal_state.SchedulerInternalStateController.__init__: scheduler
    managers.scheduler_components.internal_state.UpdateRejected
    managers.io_struct.GetInternalStateReqOutput: internal_state
    """
)
