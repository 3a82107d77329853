"""What /server_info reports about adaptive speculation, and where it reports nothing."""

from __future__ import annotations

import itertools
import time
from typing import Any

import pytest

from sglang_adaptive.lab.cpu_engine.server import CpuServer
from tests.engine.servers import LOG_INTERVAL, TIERS
from tests.engine.workload import Case, adaptive, internal_state, rounds, timeless


@pytest.fixture
def state(ema: CpuServer, easy: list[str], hard: list[str]) -> dict[str, Any]:
    """Return the internal state after both kinds of text, and after a depth was forced and released."""
    for steps in (TIERS[0], TIERS[-1], None):
        ema.force_steps(steps)
        Case(easy[0], max_new_tokens=LOG_INTERVAL).whole(ema)
    Case(hard[0], max_new_tokens=LOG_INTERVAL).whole(ema)
    return internal_state(ema)


def test_every_field(state: dict[str, Any]) -> None:
    found = state["adaptive"]
    assert {key: type(value) for key, value in found.items()} == {
        "policy": str,
        "active": bool,
        "reason": type(None),
        "current_steps": int,
        "launch_steps": int,
        "forced_steps": type(None),
        "forced_without_end": type(None),
        "tiers": list,
        "slots": list,
        "switches": int,
        "recent_switches": list,
        "rounds_by_tier": dict,
        "drafted_by_tier": dict,
        "accepted_by_tier": dict,
        "tokens_by_tier": dict,
        "accepted_by_position": list,
        "accepted_by_length": list,
        "alarms": list,
        "degraded": bool,
        "degraded_reason": type(None),
        "degraded_steps": type(None),
        "profile_saved_at": type(None),
        "startup": dict,
        "speedup": type(found["speedup"]),  # None until a round of the last hour could be priced
        "lookups": dict,
        "audit": type(None),
        "zero_steps": dict,
        "off": dict,
        "round_times": list,
        "profile_key": dict,
        "config": dict,
        "config_changed": type(found["config_changed"]),  # None until another test changes it
        "dp_rank": int,
    }
    assert (found["policy"], found["active"], found["degraded"]) == ("ema", True, False)
    assert found["tiers"] == list(TIERS) and found["current_steps"] in TIERS


def test_counts_agree(state: dict[str, Any]) -> None:
    found = state["adaptive"]
    rounds_of, drafted, accepted = (found[f"{what}_by_tier"] for what in ("rounds", "drafted", "accepted"))
    assert set(rounds_of) <= {str(tier) for tier in TIERS}
    for tier, count in rounds_of.items():
        assert drafted[tier] >= int(tier) * count  # one request a round at least
        assert 0 <= accepted[tier] <= drafted[tier]
        assert found["tokens_by_tier"][tier] >= accepted[tier] + count  # a bonus token for each request of a round
    assert accepted[str(TIERS[-1])] > 0
    lengths = found["accepted_by_length"]
    assert len(lengths) == 8 and 0 < sum(length["requests"] for length in lengths) < sum(drafted.values())
    assert all(0 <= length["accepted"] <= length["drafted"] for length in lengths)


def test_latest_switches(state: dict[str, Any]) -> None:
    switches = state["adaptive"]["recent_switches"]
    assert {"forced", "released"} <= {switch["cause"] for switch in switches}
    times = [switch["time"] for switch in switches]
    assert times == sorted(times) and time.time() - 86400 < times[0] <= times[-1] <= time.time()
    for earlier, later in itertools.pairwise(switches):
        assert earlier["to_steps"] == later["from_steps"] != later["to_steps"]
    assert switches[-1]["to_steps"] == state["adaptive"]["current_steps"]


def test_sglang_s_own_fields_keep_working(ema: CpuServer, state: dict[str, Any]) -> None:
    assert state["speculative_num_steps"] == state["adaptive"]["current_steps"]
    assert state["speculative_num_draft_tokens"] == state["adaptive"]["current_steps"] + 1
    assert 1 < state["avg_spec_accept_length"] <= TIERS[-1] + 1
    assert state["speculative_adaptive"] is True
    assert ema.server_info()["speculative_num_steps"] == state["adaptive"]["launch_steps"]


def test_snapshot_does_not_disturb(ema: CpuServer, state: dict[str, Any]) -> None:
    assert timeless(adaptive(ema)) == timeless(adaptive(ema)) == timeless(state["adaptive"])
    assert rounds(ema) == sum(state["adaptive"]["rounds_by_tier"].values())


@pytest.mark.parametrize("name", ["plain", "static"])
def test_server_without_the_flags(request: pytest.FixtureRequest, name: str, easy: list[str]) -> None:
    server: CpuServer = request.getfixturevalue(name)
    answer = Case(easy[0]).whole(server)
    state = internal_state(server)
    assert "adaptive" not in state
    assert "spec_draft_steps_histogram" not in answer["meta_info"]
    assert server.force_steps(1) == [False]
    assert "adaptive speculation" not in server.log_path.read_text()


def test_setup_that_cannot_adapt(tree: CpuServer) -> None:
    state = internal_state(tree)
    assert state["adaptive"] == {
        "active": False,
        "reason": "speculative_eagle_topk=4 (only topk=1 is supported)",
        "dp_rank": 0,
    }
    assert state["speculative_adaptive"] is False
    warnings = [line for line in tree.log_path.read_text().splitlines() if "topk=4" in line and "Falling back" in line]
    assert len(warnings) == 1
