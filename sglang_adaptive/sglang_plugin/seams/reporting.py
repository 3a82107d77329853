"""SGLang's metrics, and the counters in a response's ``meta_info``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sglang_adaptive.sglang_plugin.contract import Need
from sglang_adaptive.sglang_plugin.hooks import SRT, Process, around, event, needs

if TYPE_CHECKING:
    from sglang_adaptive.sglang_plugin.round import Round

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
    from sglang_adaptive.sglang_plugin.reporting import proposed_drafts

    original(manager, meta_info, recv_obj, i)
    proposed_drafts.correct_request_metrics(meta_info, recv_obj, i)


@event(SRT + "managers.scheduler_components.metrics_reporter.SchedulerMetricsReporter.report_decode_stats", "self")
def report_decode(now: Round, original: Callable[..., None], reporter: Any, *args: Any, **kwargs: Any) -> None:
    """Log and count the decode rounds of an interval."""
    from sglang_adaptive.sglang_plugin.reporting import proposed_drafts

    proposed_drafts.report_decode_stats(original, reporter, *args, **kwargs)


@event(SRT + "managers.scheduler.Scheduler.init_metrics_reporter", "self")
def init_metrics(now: Round, original: Callable[..., None], scheduler: Any, *args: Any, **kwargs: Any) -> None:
    """Create the metrics of a scheduler."""
    original(scheduler, *args, **kwargs)
    now.metrics_made(scheduler.metrics_collector_context)


@event(_COLLECTOR + ".log_stats", "self", "stats")
def log_stats(now: Round, original: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    """Set the metrics."""
    original(*args, **kwargs)
    now.metrics_set()


needs(
    Need(_COLLECTOR + ".__init__", ("labels",)),
    Need(_COLLECTOR + "._counter_cls"),
    Need(_COLLECTOR + "._gauge_cls"),
    Need(
        SRT + "observability.metrics_collector.SchedulerMetricsCollectorContext",
        attributes=("collector", "current_scheduler_metrics_enabled"),
    ),
)
