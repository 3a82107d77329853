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
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from sglang_adaptive.policy.options import MAX_STEPS
from sglang_adaptive.policy.throughput import ThroughputOptions, ThroughputPolicy
from sglang_adaptive.runtime.round_times import RoundClock
from sglang_adaptive.sglang_plugin.stages import reporting
from sglang_adaptive.sglang_plugin.stages.reporting import COUNTER, METRICS, PREFIX, most_series, series
from tests.fakes import Ticks, controller, with_audit

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
        clock = RoundClock(self.ticks)
        self.controller = controller(self.policy, clock, wall_time=now, profile_saved_at=lambda: saved_at)
        self.collector = SimpleNamespace(
            labels=LABELS,
            _counter_cls=functools.partial(Counter, registry=self.registry),
            _gauge_cls=functools.partial(Gauge, registry=self.registry),
        )
        self.context = SimpleNamespace(collector=self.collector, current_scheduler_metrics_enabled=True)

    def metrics(self, clock: Callable[[], float] = time.perf_counter) -> reporting.Metrics:
        """Return the metrics of a scheduler."""
        stage = reporting.Metrics(self.controller, clock)
        stage.init_metrics(lambda scheduler: None, SimpleNamespace(metrics_collector_context=self.context))
        self.update = lambda: stage.log_stats(lambda: None)
        return stage

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
    made.metrics(made.ticks)  # by the machine's clock, a slow update would skip the next one
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
    made.metrics()
    assert made.value("profile_age_seconds") == 600.0


def test_cardinality_is_bounded_whatever_is_served() -> None:
    made = Served(steps=tuple(range(MAX_STEPS + 1)), saved_at=0.0)
    for requests in range(1, 1200, 7):
        made.serve([requests % 5] * requests, rounds=2)
    found = [(name, own) for name, own, _ in series(made.controller)]
    assert len(found) == len(set(found)) <= most_series(MAX_STEPS + 1, MAX_STEPS)


def test_every_metric_that_is_named_is_reported() -> None:
    made = Served(saved_at=0.0)
    with_audit(made.controller, "equal")
    made.serve([2, 3, 1])
    made.controller.speedup = lambda: {"against": [{"steps": 0, "times": 1.0}]}  # type: ignore[method-assign]
    reported = {name for name, _, _ in series(made.controller)}
    lacking = {metric.name for metric in METRICS} - reported
    assert not lacking, f"{sorted(lacking)} of reporting.py read nothing"


def test_updates_take_a_bounded_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    made, now, writes = Served(), [0.0], []
    told = made.metrics(lambda: now[0])

    def slow() -> None:
        writes.append(now[0])
        now[0] += 0.002

    monkeypatch.setattr(told, "_write_all", slow)
    while now[0] < 100.0:  # asked every millisecond, as by a server full of short prefills
        now[0] += 0.001
        made.update()
    assert 0.9 * reporting.SHARE <= 0.002 * len(writes) / now[0] <= 1.1 * reporting.SHARE
    assert len([begin for begin in writes if begin < 0.02]) >= 5  # a few at once are no burden


@pytest.mark.parametrize("off", ["collector", "rank"])
def test_nothing_is_made_where_sglang_logs_no_metrics(off: str) -> None:
    made = Served()
    if off == "collector":
        made.context.collector = None
    else:
        made.context.current_scheduler_metrics_enabled = False
    made.metrics()
    made.update()
    assert not list(made.registry.collect())


def test_a_fault_is_logged_once_and_reaches_nobody(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> Any:
        raise OSError("disk full")

    served.controller.alarms = broken  # type: ignore[method-assign]
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            served.update()
    assert [record.exc_info is not None for record in caplog.records] == [True]

    caplog.clear()
    again = Served()
    again.registry.register(Gauge(PREFIX + "degraded", "taken", registry=None))
    again.metrics()
    again.update()
    assert len(caplog.records) == 1
