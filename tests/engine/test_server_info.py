"""What /server_info reports about adaptive speculation, and where it reports nothing."""

from __future__ import annotations

import itertools
import time
from typing import Any

import pytest

from sglang_adaptive.client import Client, RequestError
from sglang_adaptive.lab.cpu_engine.server import CpuServer
from sglang_adaptive.sglang_plugin.page.routes import DATA, HISTORY_PATH, PAGE
from tests.engine.servers import ADMIN_KEY, LOG_INTERVAL, TIERS
from tests.engine.workload import Case, adaptive, internal_state, rounds, timeless


def test_what_was_served_is_told(ema: CpuServer, easy: list[str], hard: list[str]) -> None:
    """After both kinds of text, and after a depth was forced and released. `test_page.py` compares every field."""
    for steps in (TIERS[0], TIERS[-1], None):
        ema.force_steps(steps)
        Case(easy[0], max_new_tokens=LOG_INTERVAL).whole(ema)
    Case(hard[0], max_new_tokens=LOG_INTERVAL).whole(ema)
    state = internal_state(ema)
    found = state["adaptive"]
    assert {"startup", "profile_key", "zero_steps", "off", "slots", "config"} <= set(found)
    assert (found["policy"], found["active"], found["degraded"]) == ("ema", True, False)
    assert found["tiers"] == list(TIERS) and found["current_steps"] in TIERS

    counts_agree(found)
    switches_agree(found)

    assert state["speculative_num_steps"] == found["current_steps"]
    assert state["speculative_num_draft_tokens"] == found["current_steps"] + 1
    assert 1 < state["avg_spec_accept_length"] <= TIERS[-1] + 1
    assert state["speculative_adaptive"] is True
    assert ema.server_info()["speculative_num_steps"] == found["launch_steps"]

    assert timeless(adaptive(ema)) == timeless(adaptive(ema)) == timeless(found), "looking does not disturb"
    assert rounds(ema) == sum(found["rounds_by_tier"].values())


def counts_agree(found: dict[str, Any]) -> None:
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


def switches_agree(found: dict[str, Any]) -> None:
    switches = found["recent_switches"]
    assert {"forced", "released"} <= {switch["cause"] for switch in switches}
    times = [switch["time"] for switch in switches]
    assert times == sorted(times) and time.time() - 86400 < times[0] <= times[-1] <= time.time()
    for earlier, later in itertools.pairwise(switches):
        assert earlier["to_steps"] == later["from_steps"] != later["to_steps"]
    assert switches[-1]["to_steps"] == found["current_steps"]


@pytest.mark.parametrize("name", ["plain", "static"])
def test_server_without_the_flags(request: pytest.FixtureRequest, name: str, easy: list[str]) -> None:
    server: CpuServer = request.getfixturevalue(name)
    answer = Case(easy[0]).whole(server)
    state = internal_state(server)
    assert "adaptive" not in state
    assert "spec_draft_steps_histogram" not in answer["meta_info"]
    assert server.force_steps(1) == [False]
    assert "adaptive speculation" not in server.log_path.read_text()
    for path in (PAGE, DATA, HISTORY_PATH):
        with pytest.raises(RequestError, match="404"):
            server.get(path)


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
    with pytest.raises(RequestError, match=r"400 .*adaptive speculation is off: speculative_eagle_topk=4"):
        Client.from_url(tree.url, api_key=ADMIN_KEY).force_steps(1)
