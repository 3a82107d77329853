"""SGLang's metrics, and the counters in a response's ``meta_info``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang_adaptive.sglang_plugin.hooks import SRT, Process, around, needs, to_stages
from sglang_adaptive.sglang_plugin.stage import Stage

_COLLECTOR = SRT + "observability.metrics_collector.SchedulerMetricsCollector"


@around(
    SRT + "managers.tokenizer_manager.TokenizerManager._calculate_spec_decoding_metrics",
    *("self", "meta_info", "recv_obj", "i"),
    process=Process.HTTP,
)
def request_metrics(
    original: Callable[..., None], manager: Any, meta_info: dict[str, Any], recv_obj: Any, i: int
) -> None:
    """Add a request's counts to its response."""
    from sglang_adaptive.sglang_plugin.stages.reporting import proposed_drafts

    original(manager, meta_info, recv_obj, i)
    proposed_drafts.correct_request_metrics(meta_info, recv_obj, i)


to_stages(
    Stage.report_decode,
    SRT + "managers.scheduler_components.metrics_reporter.SchedulerMetricsReporter.report_decode_stats",
    "self",
)
to_stages(Stage.init_metrics, SRT + "managers.scheduler.Scheduler.init_metrics_reporter", "self")
to_stages(Stage.log_stats, _COLLECTOR + ".log_stats", "self", "stats")

needs(
    """
    observability.metrics_collector.SchedulerMetricsCollector.__init__: labels
    observability.metrics_collector.SchedulerMetricsCollector._counter_cls
    observability.metrics_collector.SchedulerMetricsCollector._gauge_cls
    observability.metrics_collector.SchedulerMetricsCollectorContext: collector current_scheduler_metrics_enabled
    """
)
