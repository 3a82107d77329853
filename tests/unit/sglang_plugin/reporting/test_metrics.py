"""The metrics: their names, their number of series, and that the written values are the counted ones."""

from __future__ import annotations

import functools
import logging
import math
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from sglang_adaptive.policy.options import MAX_STEPS
from sglang_adaptive.policy.throughput import ThroughputOptions, ThroughputPolicy
from sglang_adaptive.runtime.controller import AdaptiveController
from sglang_adaptive.runtime.round_times import RoundClock
from sglang_adaptive.sglang_plugin.stages.reporting import metrics
from sglang_adaptive.sglang_plugin.stages.reporting.metric_series import COUNTER, METRICS, PREFIX, most_series, series
from tests.fakes import Ticks, Worker, state, with_alarm, with_audit

LABELS = {"model_name": "tiny", "engine_type": "unified", "tp_rank": 0}


class Served:
    """A controller with rounds made by the test, and metrics in a separate registry."""

    def __init__(
        self,
        steps: tuple[int, ...] = ThroughputOptions().candidate_steps,
        saved_at: float | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.registry, self.ticks = CollectorRegistry(), Ticks()
        self.update: Callable[[], None] = lambda: None
        self.policy = ThroughputPolicy(3, ThroughputOptions(candidate_steps=steps))
        self.controller = AdaptiveController(
            Worker(3), self.policy, clock=RoundClock(self.ticks), wall_time=now, profile_saved_at=lambda: saved_at
        )
        self.controller.states.register(state(3))
        self.controller.build_states()
        self.collector = SimpleNamespace(
            labels=LABELS,
            _counter_cls=functools.partial(Counter, registry=self.registry),
            _gauge_cls=functools.partial(Gauge, registry=self.registry),
        )
        self.context = SimpleNamespace(collector=self.collector, current_scheduler_metrics_enabled=True)

    def metrics(self) -> metrics.AdaptiveMetrics | None:
        """Return the metrics that a scheduler would have."""
        stage = metrics.Metrics(self.controller)
        stage.init_metrics(lambda scheduler: None, SimpleNamespace(metrics_collector_context=self.context))
        return stage.made

    def serve(self, accepted: list[int], rounds: int = 20) -> None:
        for _ in range(rounds):
            self.controller.choose(len(accepted))
            steps = self.controller.states.live.steps
            self.ticks.now += 0.01 + 0.001 * steps
            self.controller.verified([min(steps, count) for count in accepted], len(accepted))

    def value(self, name: str, /, **own: str) -> float | None:
        labels = {**{key: str(value) for key, value in LABELS.items()}, **own}
        return self.registry.get_sample_value(PREFIX + name, labels)

    def total(self, name: str) -> float:
        found = (sample for family in self.registry.collect() for sample in family.samples)
        return sum(sample.value for sample in found if sample.name == PREFIX + name)


@pytest.fixture
def served() -> Served:
    made = Served()
    attached = made.metrics()
    assert attached is not None
    # By the machine's clock, a slow update would skip the next one.
    attached._clock, attached._last = made.ticks, made.ticks()
    made.update = attached.update
    return made


def test_names_follow_prometheus_rules() -> None:
    for metric in METRICS:
        assert re.fullmatch(r"[a-z][a-z_]*", metric.name) and metric.help.endswith(".")
        assert (metric.kind == COUNTER) == metric.name.endswith("_total")
        assert metric.label is None or re.fullmatch(r"[a-z_]+", metric.label)
        assert not re.search(r"_(ms|milliseconds|percent|count)(_|$)", metric.name)  # base units


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (Debian: prometheus) is not installed")
def test_promtool_finds_nothing_to_say_about_them(served: Served) -> None:
    served.serve([2, 3, 1])
    served.update()
    # The colon is SGLang's own prefix; promtool accepts it only for recording rules.
    text = generate_latest(served.registry).replace(b"sglang:", b"sglang_")
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_counters_start_at_zero_and_carry_sglang_s_labels(served: Served) -> None:
    assert served.value("rounds_total", draft_steps="7") == 0
    assert served.value("switches_total", cause="batch_size") == 0
    assert served.value("position_reached_tokens_total", position="7") == 0
    assert served.value("degraded") == 0
    assert served.value("expected_speedup_ratio") is None  # no round yet, so nothing to expect
    assert served.value("profile_age_seconds") is None


def test_totals_agree_with_the_ledger(served: Served) -> None:
    served.serve([3, 0])
    served.update()
    served.serve([1, 2, 2, 7])
    served.update()
    served.update()  # nothing new: nothing is counted twice
    shown = served.controller.snapshot()
    assert served.total("rounds_total") == sum(shown["rounds_by_tier"].values()) == 40
    accepted, wasted = served.total("accepted_draft_tokens_total"), served.total("wasted_draft_tokens_total")
    assert accepted == sum(shown["accepted_by_tier"].values())
    assert accepted + wasted == sum(shown["drafted_by_tier"].values())
    assert served.total("output_tokens_total") == accepted + 20 * 2 + 20 * 4
    assert served.total("position_accepted_tokens_total") == accepted
    assert served.total("switches_total") == shown["switches"] > 0
    assert served.value("draft_steps") == shown["current_steps"]
    assert served.total("probes_total") == served.policy.probe_totals().started


def test_expected_and_observed_rates_by_region(served: Served) -> None:
    served.controller.force_steps(3)
    served.serve([3, 3], rounds=40)
    served.serve([3, 3, 3, 3], rounds=40)
    served.update()
    for region, requests in (("2-3", 2), ("4-7", 4)):
        tokens = served.value("observed_tokens_total", batch_region=region)
        seconds = served.value("observed_seconds_total", batch_region=region)
        assert tokens is not None and seconds is not None
        assert tokens / seconds == pytest.approx(requests * 4 / 0.013)
        expected = served.value("expected_tokens_per_second", batch_region=region)
        assert expected == pytest.approx(tokens / seconds, rel=0.15)
    forecast = served.policy.forecast(4, 3)
    assert forecast is not None and served.value("expected_speedup_ratio") == forecast.speedup


def test_a_degraded_controller_still_reports(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    served.serve([2, 2])
    served.update()
    assert not math.isnan(served.value("expected_speedup_ratio") or math.nan)
    served.policy.observe = None  # type: ignore[assignment]
    served.serve([2, 2], rounds=5)
    served.update()
    assert served.value("degraded") == 1 and served.value("draft_steps") == 3
    assert served.total("rounds_total") == 25
    for gauge, own in (("expected_speedup_ratio", {}), ("expected_tokens_per_second", {"batch_region": "2-3"})):
        assert math.isnan(served.value(gauge, **own) or 0.0)  # a value that is no longer known is not shown


def test_profile_age_is_the_time_since_it_was_saved() -> None:
    made = Served(saved_at=4400.0, now=lambda: 5000.0)
    assert made.metrics() is not None
    assert made.value("profile_age_seconds") == 600.0


def test_cardinality_is_bounded_whatever_is_served() -> None:
    made = Served(steps=tuple(range(MAX_STEPS + 1)), saved_at=0.0)
    for requests in range(1, 1200, 7):
        made.serve([requests % 5] * requests, rounds=2)
    found = [(name, own) for name, own, _ in series(made.controller.read_meters())]
    assert len(found) == len(set(found)) <= most_series(MAX_STEPS + 1, MAX_STEPS)


def test_every_metric_that_is_named_is_reported() -> None:
    made = Served(saved_at=0.0)
    with_audit(made.controller, "equal")
    made.serve([2, 3, 1])
    hour = {"against": [{"steps": 0, "times": 1.0}]}
    reported = {name for name, _, _ in series(replace(made.controller.read_meters(), hour=hour))}
    lacking = {metric.name for metric in METRICS} - reported
    assert not lacking, f"{sorted(lacking)} of metric_series.py read nothing"


def test_an_alarm_is_0_or_1() -> None:
    made = Served()
    attached = made.metrics()
    assert attached is not None and made.value("alarm", name="acceptance") == 0
    with_alarm(made.controller)
    attached._write_all()
    assert made.value("alarm", name="acceptance") == 1
    assert made.controller.acceptance_watch is not None
    made.controller.acceptance_watch.set(None)
    attached._write_all()
    assert made.value("alarm", name="acceptance") == 0


@pytest.mark.parametrize("verdict", ["equal", "tie", "wrong", "unfinished"])
def test_audits_are_counted_by_verdict_from_the_start(verdict: str) -> None:
    made = Served()
    attached = made.metrics()
    assert attached is not None and made.value("audits_total", verdict=verdict) is None
    with_audit(made.controller, verdict)
    attached._write_all()
    counts = {name: made.value("audits_total", verdict=name) for name in ("equal", "tie", "wrong", "unfinished")}
    assert counts == {**dict.fromkeys(counts, 0), verdict: 1}
    assert made.value("degraded") == (verdict == "wrong")


def test_updates_take_a_bounded_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    made, now, writes = Served(), [0.0], []
    told = metrics.AdaptiveMetrics(made.collector, made.controller, clock=lambda: now[0])

    def slow() -> None:
        writes.append(now[0])
        now[0] += 0.002

    monkeypatch.setattr(told, "_write_all", slow)
    while now[0] < 100.0:  # asked every millisecond, as by a server full of short prefills
        now[0] += 0.001
        told.update()
    assert 0.9 * metrics.SHARE <= 0.002 * len(writes) / now[0] <= 1.1 * metrics.SHARE
    assert len([begin for begin in writes if begin < 0.02]) >= 5  # a few at once are no burden


@pytest.mark.parametrize("off", ["collector", "rank"])
def test_nothing_is_made_where_sglang_logs_no_metrics(off: str) -> None:
    made = Served()
    if off == "collector":
        made.context.collector = None
    else:
        made.context.current_scheduler_metrics_enabled = False
    assert made.metrics() is None
    assert not list(made.registry.collect())


def test_a_fault_is_logged_once_and_reaches_nobody(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> Any:
        raise OSError("disk full")

    served.controller.read_meters = broken  # type: ignore[method-assign]
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            served.update()
    assert [record.exc_info is not None for record in caplog.records] == [True]

    caplog.clear()
    again = Served()
    again.registry.register(Gauge(PREFIX + "degraded", "taken", registry=None))
    assert again.metrics() is None
    assert len(caplog.records) == 1
