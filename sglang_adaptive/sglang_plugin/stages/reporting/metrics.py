"""Adds this package's metrics to SGLang's /metrics, and updates them where SGLang logs its own.

Without ``--enable-metrics``, and on ranks on which SGLang logs no metrics, nothing here is created or computed.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from typing import Any

from sglang_adaptive.runtime.controller import AdaptiveController
from sglang_adaptive.sglang_plugin.guard import Guard
from sglang_adaptive.sglang_plugin.stage import Rest, Stage
from sglang_adaptive.sglang_plugin.stages.reporting.metric_series import (
    BY_NAME,
    COUNTER,
    METRICS,
    PREFIX,
    Metric,
    series,
)

logger = logging.getLogger(__name__)

SHARE = 0.005
"""Share of the scheduler's time that updates may take."""
BURST_SECONDS = 0.01
"""Seconds of updates that may run in succession; each takes a fraction of a millisecond."""


class Metrics(Stage):
    """Our metrics next to SGLang's, from when SGLang creates its own."""

    def __init__(self, controller: AdaptiveController) -> None:
        self._controller = controller
        self.made: AdaptiveMetrics | None = None

    def init_metrics(self, rest: Rest, scheduler: Any, *args: Any, **kwargs: Any) -> None:
        """Create the metrics of a scheduler; ours as well, except on a rank that logs none, and after an error."""
        rest(scheduler, *args, **kwargs)
        context = scheduler.metrics_collector_context
        if context.collector is not None and context.current_scheduler_metrics_enabled:
            try:
                self.made = AdaptiveMetrics(context.collector, self._controller)
            except Exception:
                logger.exception("adaptive: no metrics of adaptive speculation, because they could not be created")

    def log_stats(self, rest: Rest, *args: Any, **kwargs: Any) -> None:
        """Set the metrics."""
        rest(*args, **kwargs)
        if self.made is not None:
            self.made.update()


class AdaptiveMetrics:
    """The families of METRICS with a collector's labels, and the value last written to each series.

    An update reads the controller once and writes each series that changed; ``metric_series`` bounds their number.
    SGLang logs after every prefill, so updates that would take more than SHARE of the time are skipped; the next one
    writes their changes.
    """

    def __init__(
        self, collector: Any, controller: AdaptiveController, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        # Imported here, because prometheus_client reads its multiprocess environment variable at import, and SGLang
        # sets it.
        from prometheus_client import Counter, Gauge

        self._controller = controller
        self._labels = {name: str(value) for name, value in collector.labels.items()}
        # None unless a subclass of SGLang's collector reports to something other than Prometheus.
        self._counter = collector._counter_cls or Counter
        self._gauge = collector._gauge_cls or Gauge
        self._families = {metric.name: self._family(metric) for metric in METRICS}
        self._children: dict[tuple[str, str | None], Any] = {}
        self._written: dict[tuple[str, str | None], float] = {}
        self.guard = Guard("metrics")
        self._clock = clock
        self._last, self._credit = clock(), BURST_SECONDS
        self._write_all()

    def update(self) -> None:
        """Write every series that changed, unless updates took more than their share of the time."""
        self.guard.attempt(self._update)

    def _update(self) -> None:
        begin = self._clock()
        self._credit = min(BURST_SECONDS, self._credit + SHARE * (begin - self._last))
        self._last = begin
        if self._credit > 0.0:
            self._write_all()
            self._credit -= self._clock() - begin

    def _write_all(self) -> None:
        """Write every changed series; a gauge without a value becomes NaN."""
        reading = self._controller.read_meters()
        found = {(name, own): value for name, own, value in series(reading)}
        for key, value in found.items():
            if self._written.get(key) != value:
                self._write(key, value)
        for key in self._written.keys() - found.keys():
            if BY_NAME[key[0]].kind != COUNTER and not math.isnan(self._written[key]):
                self._write(key, math.nan)

    def _write(self, key: tuple[str, str | None], value: float) -> None:
        child = self._children.get(key)
        if child is None:
            child = self._children[key] = self._child(key)
        if BY_NAME[key[0]].kind == COUNTER:
            before = self._written.get(key, 0.0)
            # A total that fell has restarted with another policy.
            child.inc(value - before if value >= before else value)
        else:
            child.set(value)
        self._written[key] = value

    def _family(self, metric: Metric) -> Any:
        names = [*self._labels, *([metric.label] if metric.label else [])]
        if metric.kind == COUNTER:
            return self._counter(name=PREFIX + metric.name, documentation=metric.help, labelnames=names)
        return self._gauge(
            name=PREFIX + metric.name, documentation=metric.help, labelnames=names, multiprocess_mode="mostrecent"
        )

    def _child(self, key: tuple[str, str | None]) -> Any:
        name, own = key
        label = BY_NAME[name].label
        return self._families[name].labels(**self._labels, **({label: own} if label else {}))
