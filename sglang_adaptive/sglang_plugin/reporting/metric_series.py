"""Every metric of this package, and the value of each series for a given state; does not import SGLang.

A series has SGLang's own labels and at most one of ours. With D runtime states (at most 33: 0 to 32 steps), the largest
of P steps, a scheduler has at most ``most_series(D, P)`` series; docs/monitoring.md has the numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sglang_adaptive.runtime.calibration import BINS
from sglang_adaptive.runtime.counters import CAUSES, REGIONS
from sglang_adaptive.runtime.meter_reading import MeterReading
from sglang_adaptive.sglang_plugin.audit.finished import VERDICTS

PREFIX = "sglang:adaptive_"
COUNTER, GAUGE = "counter", "gauge"
DEPTH, POSITION, CAUSE, REGION, CHANCE = "draft_steps", "position", "cause", "batch_region", "chance"
VERDICT = "verdict"


@dataclass(frozen=True, slots=True)
class Metric:
    """A family of series; ``name`` comes after PREFIX, and a counter's ends in ``_total``."""

    name: str
    kind: str
    help: str
    label: str | None = None
    """This package's label beside SGLang's, if any."""

    throughput_only: bool = False
    """Whether only the throughput policy has it."""


METRICS = (
    Metric("draft_steps", GAUGE, "Draft steps that are live now."),
    Metric("rounds_total", COUNTER, "Verified decode rounds, by the draft steps they were drafted with.", DEPTH),
    Metric("output_tokens_total", COUNTER, "Tokens that decode rounds yielded, bonus tokens included.", DEPTH),
    Metric("accepted_draft_tokens_total", COUNTER, "Draft tokens that the target model accepted.", DEPTH),
    Metric("wasted_draft_tokens_total", COUNTER, "Draft tokens drafted and not accepted.", DEPTH),
    Metric(
        "position_reached_tokens_total",
        COUNTER,
        "Draft tokens at this position, counted from 1, all of whose predecessors were accepted.",
        POSITION,
    ),
    Metric("position_accepted_tokens_total", COUNTER, "Those of them that were accepted themselves.", POSITION),
    Metric(
        "expected_acceptance_ratio",
        GAUGE,
        "Probability, as the policy estimates it, that a draft at this position is accepted once it is reached.",
        POSITION,
        throughput_only=True,
    ),
    Metric("switches_total", COUNTER, "Changes of the live draft steps, by what caused them.", CAUSE),
    Metric("observed_tokens_total", COUNTER, "Tokens that the rounds behind observed_seconds_total yielded.", REGION),
    Metric(
        "observed_seconds_total",
        COUNTER,
        "Wall time of the decode rounds that could be timed: those that follow a like round directly.",
        REGION,
    ),
    Metric(
        "expected_tokens_per_second",
        GAUGE,
        "Rate that the cost model expects of a round like the latest one in this region of batch sizes.",
        REGION,
        throughput_only=True,
    ),
    Metric(
        "expected_speedup_ratio",
        GAUGE,
        "Rate that the cost model expects of a round like the latest one, over the rate without speculation.",
        throughput_only=True,
    ),
    Metric(
        "hour_speedup_ratio",
        GAUGE,
        "Rate of the last hour's rounds over that of fixed draft steps, by the cost model; 0 steps: no speculation.",
        DEPTH,
        throughput_only=True,
    ),
    Metric(
        "probes_total",
        COUNTER,
        "Probes started: a few rounds at a depth that is not believed best.",
        throughput_only=True,
    ),
    Metric(
        "probe_cost_seconds_total",
        COUNTER,
        "Time that probes lost against the depth that was believed best.",
        throughput_only=True,
    ),
    Metric(
        "verify_budget",
        GAUGE,
        "Mean drafts that are verified of a request now; 0 where all are. This and the next four with verify_budget.",
        throughput_only=True,
    ),
    Metric(
        "budget_rounds_total",
        COUNTER,
        "Rounds that verified fewer drafts than they made, by draft steps.",
        DEPTH,
        throughput_only=True,
    ),
    Metric(
        "chance_trials_total",
        COUNTER,
        "Verified drafts all of whose predecessors were accepted, by the chance that the draft model gave them.",
        CHANCE,
        throughput_only=True,
    ),
    Metric("chance_believed_total", COUNTER, "The sum of their chances.", CHANCE, throughput_only=True),
    Metric("chance_accepted_total", COUNTER, "Those of them that were accepted.", CHANCE, throughput_only=True),
    Metric("lookup_rounds_total", COUNTER, "Rounds that drafts from a finished request's own text would have taken."),
    Metric("lookup_tokens_total", COUNTER, "Output tokens of these requests."),
    Metric(
        "lookup_run_tokens_total", COUNTER, "Those of them in rounds that would have accepted 8 such drafts or more."
    ),
    Metric(
        "lookup_speedup_ratio",
        GAUGE,
        "Rate of one request with such drafts where they pay, over the best depth, by the cost model; at least.",
        throughput_only=True,
    ),
    Metric(
        "audits_total", COUNTER, "Finished requests that were chosen to be decoded again, by what came of it.", VERDICT
    ),
    Metric(
        "degraded",
        GAUGE,
        "1 when the policy failed and the depth is back at the one given at launch, or the audit has found a wrong "
        "token and the depth is 0; else 0.",
    ),
    Metric(
        "profile_age_seconds",
        GAUGE,
        "Time since the cost profile of this server was last written to disk, at start the one it began from.",
        throughput_only=True,
    ),
)

BY_NAME: Mapping[str, Metric] = {metric.name: metric for metric in METRICS}

Series = tuple[str, str | None, float]
"""A metric's name, the value of its own label if it has one, and the series' value."""


def label_of(cause: str) -> str:
    """Return a cause as a label's value: "batch_size"."""
    return cause.replace(" ", "_")


def most_series(depths: int, deepest: int) -> int:
    """Return the most series of a scheduler with *depths* runtime states, the largest of *deepest* steps."""
    most = {None: 1, DEPTH: depths, POSITION: deepest, CAUSE: len(CAUSES), REGION: len(REGIONS), CHANCE: BINS}
    most[VERDICT] = len(VERDICTS)
    return sum(most[metric.label] for metric in METRICS)


def series(reading: MeterReading, now: float) -> Iterator[Series]:
    """Yield every series that *reading* has a value for; *now* is Unix time in seconds.

    Counters are present from the start, with 0, so that a rate includes their first increase. Values that the policy
    does not have are left out.
    """
    yield "draft_steps", None, reading.current_steps
    yield "degraded", None, float(reading.degraded)
    yield from _by_depth(reading)
    yield from _by_position(reading)
    yield from _by_region(reading)
    for cause in (*CAUSES, *(reading.switches_by_cause.keys() - set(CAUSES))):
        yield "switches_total", label_of(cause), reading.switches_by_cause.get(cause, 0)
    yield from _of_budgets(reading)
    yield from _of_lookups(reading)
    if reading.audit is not None:
        yield from (("audits_total", verdict, reading.audit[verdict]) for verdict in VERDICTS)
    if reading.speedup is not None:
        yield "expected_speedup_ratio", None, reading.speedup
    for one in reading.hour["against"] if reading.hour is not None else ():
        yield "hour_speedup_ratio", str(one["steps"]), one["times"]
    if reading.probes is not None:
        yield "probes_total", None, reading.probes.started
        yield "probe_cost_seconds_total", None, reading.probes.lost_seconds
    if reading.profile_saved_at is not None:
        yield "profile_age_seconds", None, max(0.0, now - reading.profile_saved_at)


def _by_depth(reading: MeterReading) -> Iterator[Series]:
    for steps in reading.tiers:
        drafted, accepted = reading.drafted_by_tier.get(steps, 0), reading.accepted_by_tier.get(steps, 0)
        yield "rounds_total", str(steps), reading.rounds_by_tier.get(steps, 0)
        yield "output_tokens_total", str(steps), reading.tokens_by_tier.get(steps, 0)
        yield "accepted_draft_tokens_total", str(steps), accepted
        yield "wasted_draft_tokens_total", str(steps), drafted - accepted


def _of_budgets(reading: MeterReading) -> Iterator[Series]:
    report = reading.verify_budget
    if report is None:
        return
    yield "verify_budget", None, report["budget"] or 0
    for steps in reading.tiers:
        yield "budget_rounds_total", str(steps), sum(one["rounds"] for one in report["rounds"] if one["steps"] == steps)
    for one in report["calibration"]:
        name, trials = f"{one['from']:.1f}-{one['to']:.1f}", one["trials"]
        yield "chance_trials_total", name, trials
        yield "chance_believed_total", name, trials * (one["believed"] or 0.0)
        yield "chance_accepted_total", name, trials * (one["accepted"] or 0.0)


def _of_lookups(reading: MeterReading) -> Iterator[Series]:
    if reading.lookups is None:
        return
    for name in ("rounds", "tokens", "run_tokens"):
        yield f"lookup_{name}_total", None, reading.lookups[name]
    if reading.lookups["worth"] is not None:
        yield "lookup_speedup_ratio", None, reading.lookups["worth"]["least"]


def _by_position(reading: MeterReading) -> Iterator[Series]:
    counted = {entry["position"]: entry for entry in reading.accepted_by_position}
    for position in range(1, max(reading.tiers, default=0) + 1):
        entry = counted.get(position, {})
        yield "position_reached_tokens_total", str(position), entry.get("reached", 0)
        yield "position_accepted_tokens_total", str(position), entry.get("accepted", 0)
    for position, ratio in enumerate(reading.acceptance, start=1):
        yield "expected_acceptance_ratio", str(position), ratio


def _by_region(reading: MeterReading) -> Iterator[Series]:
    for name, region in reading.regions.items():
        yield "observed_tokens_total", name, region.tokens
        yield "observed_seconds_total", name, region.seconds
        if region.expected_tokens_per_second is not None:
            yield "expected_tokens_per_second", name, region.expected_tokens_per_second
