"""Prometheus metrics, and the counters in a response's ``meta_info``.

May import hooking, scheduler, policy and runtime.
"""

from __future__ import annotations

from sglang_adaptive.sglang_plugin.hooking.hook import SRT, Hook, Need, Process

HOOKS = (
    Hook(
        SRT + "managers.tokenizer_manager.TokenizerManager._calculate_spec_decoding_metrics",
        "after",
        "reporting.proposed_drafts:correct_request_metrics",
        ("self", "meta_info", "recv_obj", "i"),
        process=Process.HTTP,
    ),
    Hook(
        SRT + "managers.scheduler_components.metrics_reporter.SchedulerMetricsReporter.report_decode_stats",
        "around",
        "reporting.proposed_drafts:report_decode_stats",
        ("self",),
    ),
    Hook(SRT + "managers.scheduler.Scheduler.init_metrics_reporter", "after", "reporting.metrics:attach", ("self",)),
    Hook(
        SRT + "observability.metrics_collector.SchedulerMetricsCollector.log_stats",
        "after",
        "reporting.metrics:update",
        ("self", "stats"),
    ),
)

NEEDS = (
    Need(SRT + "observability.metrics_collector.SchedulerMetricsCollector.__init__", ("labels",)),
    Need(SRT + "observability.metrics_collector.SchedulerMetricsCollector._counter_cls"),
    Need(SRT + "observability.metrics_collector.SchedulerMetricsCollector._gauge_cls"),
    Need(
        SRT + "observability.metrics_collector.SchedulerMetricsCollectorContext",
        fields=("collector", "current_scheduler_metrics_enabled"),
    ),
)
