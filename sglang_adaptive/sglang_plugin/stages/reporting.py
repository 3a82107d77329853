"""Metrics of this package next to SGLang's, and accept rates over the drafts that were actually proposed.

A series has SGLang's own labels and at most one of ours; `most_series` bounds their number. Without
``--enable-metrics``, and on ranks on which SGLang logs no metrics, nothing is created or computed.
"""

from __future__ import annotations

import logging
import math
import time
from array import array
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from sglang_adaptive.policy.base import ProbeTotals, RoundPrices
from sglang_adaptive.policy.observation import RoundNote
from sglang_adaptive.runtime import alarms
from sglang_adaptive.runtime.controller import AdaptiveController
from sglang_adaptive.runtime.counters import CAUSES, REGIONS, Counters, Region
from sglang_adaptive.sglang_plugin.guard import Guard
from sglang_adaptive.sglang_plugin.stage import Rest, Stage
from sglang_adaptive.sglang_plugin.stages.audit_scheduler import VERDICTS

logger = logging.getLogger(__name__)

PREFIX = "sglang:adaptive_"
COUNTER, GAUGE = "counter", "gauge"
DEPTH, POSITION, CAUSE, REGION = "draft_steps", "position", "cause", "batch_region"
VERDICT, ALARM = "verdict", "name"

Read = Callable[[AdaptiveController], float | Mapping[str, float] | None]
"""Reads a metric: a number, or one per value of its label; None if the policy or the setup has none.

Counters exist from the start, at 0, so that a rate includes their first increase.
"""


@dataclass(frozen=True, slots=True)
class Metric:
    """A family of series; ``name`` comes after PREFIX, and a counter's ends in ``_total``."""

    name: str
    kind: str
    help: str
    read: Read
    label: str | None = None
    """This package's label beside SGLang's, if any."""
    needs: str = ""
    """The configuration key that it requires."""


def label_of(cause: str) -> str:
    """Return a cause as a label value, such as "batch_size"."""
    return cause.replace(" ", "_")


def _by_depth(of: Callable[[Counters], Mapping[int, int]]) -> Read:
    """Return a reader of counts by steps, for the steps with a runtime state."""

    def read(controller: AdaptiveController) -> Mapping[str, float]:
        counts = of(controller.counters)
        return {str(steps): counts.get(steps, 0) for steps in controller.states.tiers}

    return read


def _by_position(key: str) -> Read:
    """Return a reader of *key* of ``Counters.by_position``, for the positions of the most steps."""

    def read(controller: AdaptiveController) -> Mapping[str, float]:
        counted = {entry["position"]: entry[key] for entry in controller.counters.by_position()}
        return {str(place): counted.get(place, 0) for place in range(1, controller.states.deepest + 1)}

    return read


def _by_region(of: Callable[[Region], float]) -> Read:
    """Return a reader of the batch-size regions that had a round."""
    return lambda controller: {name: of(region) for name, region in controller.counters.regions.items()}


def _causes(controller: AdaptiveController) -> Mapping[str, float]:
    counts = controller.counters.switches_by_cause
    return {label_of(cause): counts[cause] for cause in (*CAUSES, *(counts.keys() - set(CAUSES)))}


def _hour(controller: AdaptiveController) -> Mapping[str, float]:
    hour = controller.speedup()
    return {str(one["steps"]): one["times"] for one in (hour["against"] if hour else ())}


def _prices(controller: AdaptiveController, region: Region) -> RoundPrices | None:
    """Return the policy's prices for a round like the latest drafted one of *region*; None if it has none."""
    return controller.figures.prices(region.batch_size, region.steps) if region.batch_size else None


def _expected_rates(controller: AdaptiveController) -> Mapping[str, float]:
    rates = {}
    for name, region in controller.counters.regions.items():
        if (prices := _prices(controller, region)) and (rate := prices.rate(region.steps)) is not None:
            rates[name] = region.batch_size * rate
    return rates


def _speedup(controller: AdaptiveController) -> float | None:
    region = controller.counters.regions.get(controller.counters.latest, Region())
    if (prices := _prices(controller, region)) is None:
        return None
    rate, plain = prices.rate(region.steps), prices.rate(0)
    return None if rate is None or plain is None else rate / plain


def _of_probes(of: Callable[[ProbeTotals], float]) -> Read:
    """Return a reader of the policy's probes."""
    return lambda controller: None if (totals := controller.figures.probe_totals()) is None else of(totals)


def _audits(controller: AdaptiveController) -> Mapping[str, float] | None:
    found = controller.audits()
    return found and {verdict: found[verdict] for verdict in VERDICTS}


def _alarms(controller: AdaptiveController) -> Mapping[str, float]:
    raised = {alarm["name"] for alarm in controller.alarms()}
    return {name: float(name in raised) for name in alarms.NAMES}


def _profile_age(controller: AdaptiveController) -> float | None:
    saved_at = controller.profile_saved_at()
    return None if saved_at is None else max(0.0, controller.wall_time() - saved_at)


# fmt: off
METRICS = (
    Metric("draft_steps", GAUGE, "Current draft steps.", lambda controller: controller.states.live.steps),
    Metric("rounds_total", COUNTER, "Verified decode rounds, by draft steps.",
        _by_depth(lambda counters: counters.rounds), DEPTH),
    Metric("output_tokens_total", COUNTER, "Tokens that decode rounds produced, including bonus tokens.",
        _by_depth(Counters.tokens), DEPTH),
    Metric("accepted_draft_tokens_total", COUNTER, "Draft tokens that the target model accepted.",
        _by_depth(Counters.accepted), DEPTH),
    Metric("wasted_draft_tokens_total", COUNTER, "Draft tokens drafted and not accepted.",
        _by_depth(Counters.wasted), DEPTH),
    Metric("position_reached_tokens_total", COUNTER,
        "Draft tokens at this position, counted from 1, whose predecessors were all accepted.",
        _by_position("reached"), POSITION),
    Metric("position_accepted_tokens_total", COUNTER, "Draft tokens at this position that were accepted.",
        _by_position("accepted"), POSITION),
    Metric("expected_acceptance_ratio", GAUGE,
        "The policy's estimate of the probability that a draft at this position is accepted once it is reached.",
        lambda controller: {str(at): ratio for at, ratio in enumerate(controller.figures.acceptance_by_position(), 1)},
        POSITION, needs="throughput"),
    Metric("switches_total", COUNTER, "Changes of the current draft steps, by cause.", _causes, CAUSE),
    Metric("observed_tokens_total", COUNTER, "Tokens that the rounds in observed_seconds_total produced.",
        _by_region(lambda region: region.tokens), REGION),
    Metric("observed_seconds_total", COUNTER,
        "Wall time of the decode rounds that could be timed: those directly after a similar round.",
        _by_region(lambda region: region.seconds), REGION),
    Metric("expected_tokens_per_second", GAUGE,
        "Rate that the cost model expects from a round like the latest drafted one in this region of batch sizes.",
        _expected_rates, REGION, needs="throughput"),
    Metric("expected_speedup_ratio", GAUGE,
        "Rate that the cost model expects from a round like the latest drafted one, over the rate without speculation.",
        _speedup, needs="throughput"),
    Metric("hour_speedup_ratio", GAUGE,
        "Rate of the last hour's rounds over the rate at fixed draft steps, by the cost model; 0 is no speculation.",
        _hour, DEPTH, needs="throughput"),
    Metric("probes_total", COUNTER, "Probes started: a few rounds at a depth that is not expected to be the best.",
        _of_probes(lambda totals: totals.started), needs="throughput"),
    Metric("probe_cost_seconds_total", COUNTER,
        "Time that probes lost compared with the depth that was expected to be the best.",
        _of_probes(lambda totals: totals.lost_seconds), needs="throughput"),
    Metric("audits_total", COUNTER, "Finished requests that were chosen to be decoded again, by result.",
        _audits, VERDICT, needs="audit"),
    Metric("alarm", GAUGE, "1 while this alarm is raised, otherwise 0.", _alarms, ALARM),
    Metric("degraded", GAUGE,
        "1 if the policy failed and the depth is back at the launch depth, or the audit found a wrong token and the "
        "depth is 0; otherwise 0.", lambda controller: float(controller.degraded is not None)),
    Metric("profile_age_seconds", GAUGE,
        "Time since this server's cost profile was last written to disk; at first, the profile that it started from.",
        _profile_age, needs="throughput"),
)
# fmt: on

BY_NAME: Mapping[str, Metric] = {metric.name: metric for metric in METRICS}

Series = tuple[str, str | None, float]
"""A metric's name, the value of its own label if it has one, and the series' value."""


def most_series(depths: int, deepest: int) -> int:
    """Return the most series of a scheduler with *depths* runtime states of up to *deepest* steps."""
    most = {None: 1, DEPTH: depths, POSITION: deepest, CAUSE: len(CAUSES), REGION: len(REGIONS)}
    most |= {VERDICT: len(VERDICTS), ALARM: len(alarms.NAMES)}
    return sum(most[metric.label] for metric in METRICS)


def series(controller: AdaptiveController) -> Iterator[Series]:
    """Yield every series that *controller* has a value for."""
    for metric in METRICS:
        value = metric.read(controller)
        if isinstance(value, Mapping):
            yield from ((metric.name, own, one) for own, one in value.items())
        elif value is not None:
            yield metric.name, None, value


SHARE = 0.005
"""Share of the scheduler's time that updates may take."""
BURST_SECONDS = 0.01
"""Seconds of updates that may run in succession; each takes a fraction of a millisecond."""


class Metrics(Stage):
    """The families of METRICS with the labels of SGLang's metrics, and the value last written to each series.

    An update reads the controller and writes each series that changed. SGLang logs after every prefill, so updates
    that would take more than SHARE of the time are skipped; the next one writes their changes.
    """

    def __init__(self, controller: AdaptiveController, clock: Callable[[], float] = time.perf_counter) -> None:
        self._controller, self._clock = controller, clock
        self.guard = Guard("metrics")
        self._exist = False
        self._labels: dict[str, str] = {}
        self._families: dict[str, Any] = {}
        self._children: dict[tuple[str, str | None], Any] = {}
        self._written: dict[tuple[str, str | None], float] = {}
        self._last, self._credit = clock(), BURST_SECONDS

    def init_metrics(self, rest: Rest, scheduler: Any, *args: Any, **kwargs: Any) -> None:
        """Create the metrics of a scheduler; ours as well, except on a rank that logs none, and after an error."""
        rest(scheduler, *args, **kwargs)
        context = scheduler.metrics_collector_context
        if context.collector is not None and context.current_scheduler_metrics_enabled:
            try:
                self._create(context.collector)
            except Exception:
                logger.exception("adaptive: no metrics of adaptive speculation, because they could not be created")

    def _create(self, collector: Any) -> None:
        # Imported here, because prometheus_client reads its multiprocess environment variable at import, and SGLang
        # sets it.
        from prometheus_client import Counter, Gauge

        self._labels = {name: str(value) for name, value in collector.labels.items()}
        # None unless a subclass of SGLang's collector reports to something other than Prometheus.
        counter, gauge = collector._counter_cls or Counter, collector._gauge_cls or Gauge
        for metric in METRICS:
            make = counter if metric.kind == COUNTER else partial(gauge, multiprocess_mode="mostrecent")
            names = [*self._labels, *([metric.label] if metric.label else [])]
            self._families[metric.name] = make(name=PREFIX + metric.name, documentation=metric.help, labelnames=names)
        self._write_all()
        self._exist = True

    def log_stats(self, rest: Rest, *args: Any, **kwargs: Any) -> None:
        rest(*args, **kwargs)
        if self._exist:
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
        found = {(name, own): value for name, own, value in series(self._controller)}
        for key, value in found.items():
            if self._written.get(key) != value:
                self._write(key, value)
        for key in self._written.keys() - found.keys():
            if BY_NAME[key[0]].kind != COUNTER and not math.isnan(self._written[key]):
                self._write(key, math.nan)

    def _write(self, key: tuple[str, str | None], value: float) -> None:
        child = self._children.get(key)
        if child is None:
            name, own = key
            label = BY_NAME[name].label
            labels = {**self._labels, **({label: own} if label else {})}
            child = self._children[key] = self._families[name].labels(**labels)
        if BY_NAME[key[0]].kind == COUNTER:
            before = self._written.get(key, 0.0)
            # A total that fell has restarted with another policy.
            child.inc(value - before if value >= before else value)
        else:
            child.set(value)
        self._written[key] = value


class ProposedDrafts(Stage):
    """Notes how many drafts each round proposed, and reports by that.

    SGLang 0.5.23 divides accepted drafts by rounds x one number of steps: the live one in the scheduler's log and
    gauges, the one at launch in a response's meta_info. Here each result reports its proposed drafts in ``cap_lens``,
    SGLang's field for how many drafts each request of a round may propose, which EAGLE leaves empty.
    """

    def arrived(self, note: RoundNote, result: Any, batch: Any) -> None:
        if result.cap_lens is None:
            result.cap_lens = array("q", [note.steps]) * len(batch.reqs)  # has the ``tolist`` of SGLang's tensor

    def report_decode(self, rest: Rest, reporter: Any, *args: Any, **kwargs: Any) -> None:
        """Report, divided by the mean draft tokens of the rounds since the last report."""
        rounds = reporter.spec_num_forward_ct
        if reporter.forward_ct_decode % reporter.decode_log_interval or rounds == 0:  # SGLang reports nothing this time
            rest(reporter, *args, **kwargs)
            return
        from sglang.srt.runtime_context import get_spec

        proposed = reporter.spec_num_cap_tokens
        reporter.spec_num_cap_tokens = 0  # else the log would report the drafts as a cap
        try:
            with get_spec().override(speculative_num_draft_tokens=proposed / rounds + 1):
                rest(reporter, *args, **kwargs)
        finally:
            if reporter.spec_num_forward_ct:  # nothing was reported this time: keep counting
                reporter.spec_num_cap_tokens = proposed


def correct_request_metrics(meta_info: dict[str, Any], recv_obj: Any, i: int) -> None:
    """Correct the rates in a response's meta_info by the drafts that the rounds of request *i* proposed."""
    proposed_by_request = getattr(recv_obj, "spec_num_cap_tokens", None)
    rounds_by_request = getattr(recv_obj, "spec_verify_ct", None)
    if not proposed_by_request or not rounds_by_request or not rounds_by_request[i]:
        return
    proposed, rounds = proposed_by_request[i], rounds_by_request[i]
    correct = recv_obj.spec_num_correct_drafts[i]
    # SGLang omits all of these for a server launched at zero steps.
    meta_info["spec_accept_rate"] = correct / proposed if proposed else 0.0
    meta_info["spec_accept_length"] = recv_obj.completion_tokens[i] / rounds
    meta_info["spec_num_correct_drafts"] = correct
    meta_info["spec_num_proposed_drafts"] = proposed
    meta_info["spec_verify_ct"] = rounds
    meta_info.pop("spec_cap_length", None)
    histogram = meta_info.pop("spec_cap_lens_histogram", None)
    if histogram is not None:
        meta_info["spec_draft_steps_histogram"] = histogram
