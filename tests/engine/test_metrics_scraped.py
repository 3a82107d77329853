"""The metrics as seen by a real Prometheus, which scrapes servers on the CPU engine and is queried over HTTP."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sglang_adaptive.lab.cpu_engine.server import CpuServer
from sglang_adaptive.sglang_plugin.stages.reporting import BY_NAME, CAUSE, DEPTH, METRICS, POSITION, PREFIX, REGION
from tests.engine.servers import LAUNCH_STEPS, TIERS
from tests.engine.workload import Case, adaptive, run, run_together, wait_until
from tests.prometheus import Prometheus, installed

needs_prometheus = pytest.mark.skipif(not installed(), reason="Prometheus (Debian: prometheus) is not installed")


@pytest.fixture
def prometheus(server: CpuServer, tmp_path: Path) -> Iterator[Prometheus]:
    """One that watches the test's server."""
    with Prometheus(tmp_path / "prometheus", [server]) as watching:
        yield watching


def caught_up(prometheus: Prometheus, server: CpuServer) -> dict[str, Any]:
    """Wait until Prometheus has the idle server's counts and depth; return the server's state.

    Queries are about that scrape from then on. The scrape must start after the state was read: it reads one file per
    kind of metric, so a scrape during an update has the new counters next to the old gauges. SGLang logs when it
    becomes idle (half a minute later after too few rounds) and whenever it is paused; an update that would take more
    than its share of the time waits for the next.
    """
    server.post("/pause_generation", {"mode": "retract"})
    server.post("/continue_generation", {})
    state = adaptive(server)
    asked = time.time()
    rounds = sum(state["rounds_by_tier"].values())

    def has_seen() -> bool:
        prometheus.moment = None
        for _, latest in prometheus.query(f"max(timestamp({PREFIX}rounds_total))"):
            prometheus.moment = latest
            counted = prometheus.query(f"sum({PREFIX}rounds_total)") == [({}, rounds)]
            depth = prometheus.query(f"max({PREFIX}draft_steps)") == [({}, state["current_steps"])]
            return latest > asked and counted and depth
        return False

    wait_until(has_seen, f"Prometheus has seen {rounds} rounds and {state['current_steps']} steps")
    return state


def own(labels: dict[str, str], label: str | None) -> dict[str, str]:
    """Return the part of *labels* that this package adds."""
    return {} if label is None else {label: labels[label]}


@needs_prometheus
@pytest.mark.parametrize("name", ["ema"])
def test_what_prometheus_sees_is_what_the_server_counted(
    ema: CpuServer, prometheus: Prometheus, easy: list[str], hard: list[str]
) -> None:
    run(ema, [Case(prompt) for prompt in easy[:2]], at_once=1)
    before = caught_up(prometheus, ema)
    for steps in TIERS:  # all but one differ from the policy's own
        for held in (steps, None):
            ema.force_steps(held)
            Case(easy[0], max_new_tokens=8).whole(ema)
    for prompts in (easy[:3], hard[:3]):
        run_together(ema, [Case(prompt) for prompt in prompts])
    state = caught_up(prometheus, ema)

    def by(name: str) -> dict[str, float]:
        label = BY_NAME[name].label
        return prometheus.by(label, PREFIX + name) if label else {}

    for name, block in (
        ("rounds_total", "rounds_by_tier"),
        ("accepted_draft_tokens_total", "accepted_by_tier"),
        ("output_tokens_total", "tokens_by_tier"),
    ):
        assert by(name) == {str(tier): state[block].get(str(tier), 0) for tier in TIERS}
    wasted = by("wasted_draft_tokens_total")
    for tier, drafted in state["drafted_by_tier"].items():
        assert wasted[tier] == drafted - state["accepted_by_tier"][tier]
    positions = {str(entry["position"]): entry for entry in state["accepted_by_position"]}
    assert by("position_reached_tokens_total") == {at: entry["reached"] for at, entry in positions.items()}
    assert by("position_accepted_tokens_total") == {at: entry["accepted"] for at, entry in positions.items()}
    switches = by("switches_total")
    assert sum(switches.values()) == state["switches"] > before["switches"]
    assert switches["forced"] >= 1 and switches["released"] >= 1 and switches["degraded"] == 0
    assert prometheus.query(PREFIX + "draft_steps")[0][1] == state["current_steps"]
    assert prometheus.query(PREFIX + "degraded")[0][1] == 0

    rates = prometheus.by(REGION, f"{PREFIX}observed_tokens_total / {PREFIX}observed_seconds_total")
    assert rates["1"] > 0 and rates["2-3"] > 0
    growth = prometheus.query(f"sum(increase({PREFIX}output_tokens_total[1h]))")[0][1]
    assert growth > 0  # Prometheus can compute rates of the counters

    theirs, _ = prometheus.query("sglang:spec_num_steps")[0]
    for metric in METRICS:
        found = prometheus.query(PREFIX + metric.name)
        assert bool(found) != bool(metric.needs), metric.name  # neither a cost model nor an audit
        for labels, _ in found:
            assert {**labels, "__name__": ""} == {**theirs, "__name__": "", **own(labels, metric.label)}
    exposed = ema.get("/metrics").splitlines()
    for metric in METRICS:
        if not metric.needs:
            assert f"# HELP {PREFIX}{metric.name} {metric.help}" in exposed
            assert f"# TYPE {PREFIX}{metric.name} {metric.kind}" in exposed


@needs_prometheus
@pytest.mark.parametrize("name", ["two_ranks"])
def test_expectations_come_from_the_one_rank_that_logs(
    two_ranks: CpuServer, prometheus: Prometheus, easy: list[str], hard: list[str]
) -> None:
    for prompts in (easy[:3], hard[:3]):
        run_together(two_ranks, [Case(prompt, max_new_tokens=96) for prompt in prompts])
    # Without this, one request alone may have only untimed rounds, or only looked up ones.
    two_ranks.force_steps(LAUNCH_STEPS)
    Case(hard[0]).whole(two_ranks)
    two_ranks.force_steps(None)
    Case(hard[1]).whole(two_ranks)  # the policy's latest batch size, of which the state has rates
    state = caught_up(prometheus, two_ranks)
    ranks = prometheus.query(f'count by (tp_rank) ({{__name__=~"{PREFIX}.*"}})')
    assert [labels["tp_rank"] for labels, _ in ranks] == ["0"]

    expected = prometheus.by(REGION, PREFIX + "expected_tokens_per_second")
    observed = prometheus.by(REGION, f"{PREFIX}observed_tokens_total / {PREFIX}observed_seconds_total")
    assert expected.keys() == observed.keys() and min(expected.values()) > 0 and observed["2-3"] > 0
    rates = {rate["steps"]: rate["tokens_per_second"] for rate in state["rates"]}
    ((_, speedup),) = prometheus.query(PREFIX + "expected_speedup_ratio")
    # The latest drafted round: the policy may have left its steps since, or probed with them.
    assert any(expected["1"] == pytest.approx(rate) for rate in rates.values())
    assert speedup == pytest.approx(expected["1"] / rates[0])
    acceptance = prometheus.by(POSITION, PREFIX + "expected_acceptance_ratio")
    assert acceptance == {str(at["position"]): pytest.approx(at["probability"]) for at in state["acceptance"]}
    assert prometheus.query(PREFIX + "probes_total")[0][1] == state["probes"]["started"]
    lost = prometheus.query(PREFIX + "probe_cost_seconds_total")[0][1]
    assert 0.0 <= lost <= state["probes"]["charged_seconds"] * (1 + 1e-9)
    assert set(prometheus.by(DEPTH, PREFIX + "rounds_total")) == {str(tier) for tier in state["tiers"]}
    assert "probe" in prometheus.by(CAUSE, PREFIX + "switches_total")


def test_a_server_that_is_not_adaptive_has_sglang_s_metrics_alone(static: CpuServer, easy: list[str]) -> None:
    Case(easy[0]).whole(static)
    exposed = static.get("/metrics")
    assert "sglang:spec_accept_length" in exposed and PREFIX not in exposed
    assert not math.isnan(float(exposed.split("sglang:spec_num_steps{")[1].split("} ")[1].split()[0]))
