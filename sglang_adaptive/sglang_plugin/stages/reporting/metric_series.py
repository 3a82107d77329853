"""Every metric of this package and how to read its values; does not import SGLang.

A series has SGLang's own labels and at most one of ours. With D runtime states (at most 33: 0 to 32 steps) of up to P
steps, a scheduler has at most ``most_series(D, P)`` series; docs/monitoring.md has the numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from sglang_adaptive.runtime import alarms
from sglang_adaptive.runtime.controller import MeterReading
from sglang_adaptive.runtime.counters import CAUSES, REGIONS, Counters, Region
from sglang_adaptive.sglang_plugin.stages.audit_scheduler import VERDICTS

PREFIX = "sglang:adaptive_"
COUNTER, GAUGE = "counter", "gauge"
DEPTH, POSITION, CAUSE, REGION = "draft_steps", "position", "cause", "batch_region"
VERDICT, ALARM = "verdict", "name"

Read = Callable[[MeterReading], float | Mapping[str, float] | None]
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

    def read(reading: MeterReading) -> Mapping[str, float]:
        counts = of(reading.counters)
        return {str(steps): counts.get(steps, 0) for steps in reading.states.tiers}

    return read


def _by_position(key: str) -> Read:
    """Return a reader of *key* of ``Counters.by_position``, for the positions of the most steps."""

    def read(reading: MeterReading) -> Mapping[str, float]:
        counted = {entry["position"]: entry[key] for entry in reading.counters.by_position()}
        return {str(place): counted.get(place, 0) for place in range(1, reading.states.deepest + 1)}

    return read


def _by_region(of: Callable[[Region], float]) -> Read:
    """Return a reader of the batch-size regions that had a round."""
    return lambda reading: {name: of(region) for name, region in reading.counters.regions.items()}


def _causes(reading: MeterReading) -> Mapping[str, float]:
    counts = reading.counters.switches_by_cause
    return {label_of(cause): counts[cause] for cause in (*CAUSES, *(counts.keys() - set(CAUSES)))}


def _hour(reading: MeterReading) -> Mapping[str, float]:
    return {str(one["steps"]): one["times"] for one in (reading.hour["against"] if reading.hour else ())}


METRICS = (
    Metric("draft_steps", GAUGE, "Current draft steps.", lambda reading: reading.states.live.steps),
    Metric(
        "rounds_total",
        COUNTER,
        "Verified decode rounds, by draft steps.",
        _by_depth(lambda counters: counters.rounds),
        DEPTH,
    ),
    Metric(
        "output_tokens_total",
        COUNTER,
        "Tokens that decode rounds produced, including bonus tokens.",
        _by_depth(Counters.tokens),
        DEPTH,
    ),
    Metric(
        "accepted_draft_tokens_total",
        COUNTER,
        "Draft tokens that the target model accepted.",
        _by_depth(Counters.accepted),
        DEPTH,
    ),
    Metric(
        "wasted_draft_tokens_total",
        COUNTER,
        "Draft tokens drafted and not accepted.",
        _by_depth(Counters.wasted),
        DEPTH,
    ),
    Metric(
        "position_reached_tokens_total",
        COUNTER,
        "Draft tokens at this position, counted from 1, whose predecessors were all accepted.",
        _by_position("reached"),
        POSITION,
    ),
    Metric(
        "position_accepted_tokens_total",
        COUNTER,
        "Draft tokens at this position that were accepted.",
        _by_position("accepted"),
        POSITION,
    ),
    Metric(
        "expected_acceptance_ratio",
        GAUGE,
        "The policy's estimate of the probability that a draft at this position is accepted once it is reached.",
        lambda reading: {str(place): ratio for place, ratio in enumerate(reading.acceptance, start=1)},
        POSITION,
        needs="throughput",
    ),
    Metric("switches_total", COUNTER, "Changes of the current draft steps, by cause.", _causes, CAUSE),
    Metric(
        "observed_tokens_total",
        COUNTER,
        "Tokens that the rounds in observed_seconds_total produced.",
        _by_region(lambda region: region.tokens),
        REGION,
    ),
    Metric(
        "observed_seconds_total",
        COUNTER,
        "Wall time of the decode rounds that could be timed: those directly after a similar round.",
        _by_region(lambda region: region.seconds),
        REGION,
    ),
    Metric(
        "expected_tokens_per_second",
        GAUGE,
        "Rate that the cost model expects from a round like the latest drafted one in this region of batch sizes.",
        lambda reading: {name: expected.tokens_per_second for name, expected in reading.forecasts.items()},
        REGION,
        needs="throughput",
    ),
    Metric(
        "expected_speedup_ratio",
        GAUGE,
        "Rate that the cost model expects from a round like the latest drafted one, over the rate without speculation.",
        lambda reading: reading.speedup,
        needs="throughput",
    ),
    Metric(
        "hour_speedup_ratio",
        GAUGE,
        "Rate of the last hour's rounds over the rate at fixed draft steps, by the cost model; 0 is no speculation.",
        _hour,
        DEPTH,
        needs="throughput",
    ),
    Metric(
        "probes_total",
        COUNTER,
        "Probes started: a few rounds at a depth that is not expected to be the best.",
        lambda reading: None if reading.probes is None else reading.probes.started,
        needs="throughput",
    ),
    Metric(
        "probe_cost_seconds_total",
        COUNTER,
        "Time that probes lost compared with the depth that was expected to be the best.",
        lambda reading: None if reading.probes is None else reading.probes.lost_seconds,
        needs="throughput",
    ),
    Metric(
        "audits_total",
        COUNTER,
        "Finished requests that were chosen to be decoded again, by result.",
        lambda reading: reading.audit and {verdict: reading.audit[verdict] for verdict in VERDICTS},
        VERDICT,
        needs="audit",
    ),
    Metric(
        "alarm",
        GAUGE,
        "1 while this alarm is raised, otherwise 0.",
        lambda reading: {name: float(name in reading.alarms) for name in alarms.NAMES},
        ALARM,
    ),
    Metric(
        "degraded",
        GAUGE,
        "1 if the policy failed and the depth is back at the launch depth, or the audit found a wrong token and the "
        "depth is 0; otherwise 0.",
        lambda reading: float(reading.degraded),
    ),
    Metric(
        "profile_age_seconds",
        GAUGE,
        "Time since this server's cost profile was last written to disk; at first, the profile that it started from.",
        lambda reading: None if (at := reading.profile_saved_at) is None else max(0.0, reading.time - at),
        needs="throughput",
    ),
)

BY_NAME: Mapping[str, Metric] = {metric.name: metric for metric in METRICS}

Series = tuple[str, str | None, float]
"""A metric's name, the value of its own label if it has one, and the series' value."""


def most_series(depths: int, deepest: int) -> int:
    """Return the most series of a scheduler with *depths* runtime states of up to *deepest* steps."""
    most = {
        None: 1,
        DEPTH: depths,
        POSITION: deepest,
        CAUSE: len(CAUSES),
        REGION: len(REGIONS),
        VERDICT: len(VERDICTS),
        ALARM: len(alarms.NAMES),
    }
    return sum(most[metric.label] for metric in METRICS)


def series(reading: MeterReading) -> Iterator[Series]:
    """Yield every series that *reading* has a value for."""
    for metric in METRICS:
        value = metric.read(reading)
        if isinstance(value, Mapping):
            yield from ((metric.name, own, one) for own, one in value.items())
        elif value is not None:
            yield metric.name, None, value
