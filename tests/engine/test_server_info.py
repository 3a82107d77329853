"""What /server_info reports about adaptive speculation, and where it reports nothing."""

from __future__ import annotations

from typing import Any

import pytest

from sglang_adaptive.client import Client, RequestError
from sglang_adaptive.lab.cpu_engine.server import CpuServer
from sglang_adaptive.sglang_plugin.page.routes import DATA, HISTORY_PATH, PAGE
from tests.engine.servers import ADMIN_KEY, LOG_INTERVAL, TIERS
from tests.engine.workload import Case, adaptive, internal_state, timeless
from tests.json_page import documented_paths


def test_what_was_served_is_told(ema: CpuServer, easy: list[str], hard: list[str]) -> None:
    """After both kinds of text, and after a depth was forced and released. The next test compares every field."""
    for steps in (TIERS[0], TIERS[-1], None):
        ema.force_steps(steps)
        Case(easy[0], max_new_tokens=LOG_INTERVAL).whole(ema)
    Case(hard[0], max_new_tokens=LOG_INTERVAL).whole(ema)
    state = internal_state(ema)
    found = state["adaptive"]
    assert {"startup", "profile_key", "zero_steps", "off", "slots", "config"} <= set(found)
    assert (found["policy"], found["active"], found["degraded"]) == ("ema", True, False)
    assert found["tiers"] == list(TIERS) and found["current_steps"] in TIERS
    assert state["speculative_num_steps"] == found["current_steps"]
    assert state["speculative_num_draft_tokens"] == found["current_steps"] + 1
    assert 1 < state["avg_spec_accept_length"] <= TIERS[-1] + 1
    assert state["speculative_adaptive"] is True
    assert ema.server_info()["speculative_num_steps"] == found["launch_steps"]

    assert timeless(adaptive(ema)) == timeless(found), "looking does not disturb"
    assert any(length["requests"] for length in found["accepted_by_length"])


def test_the_data_is_what_server_info_has(ema: CpuServer, two_ranks: CpuServer) -> None:
    for server in (ema, two_ranks):
        document = server.get(DATA)
        assert document["version"] == 1 and document["model"] == "tiny"
        assert list(map(timeless, document["ranks"])) == [timeless(adaptive(server))]
        assert documented_paths(document), "fails when something is sent that docs/json.md does not have"
        assert documented_paths(server.get(HISTORY_PATH), HISTORY_PATH)


def test_how_often_the_draft_is_extended_at_zero_steps(ema: CpuServer, easy: list[str]) -> None:
    def every(rounds: int) -> Any:
        return ema.post("/set_internal_state", {"server_args": {"adaptive_zero_step_extend_every": rounds}})

    # Every second time, held rows are only written and the latest stays owed, so the next time is one round earlier.
    for interval, times in ((3, 9), (1, 0), (8, 3)):
        assert every(interval) == [True]
        ema.force_steps(3)
        Case(easy[0], max_new_tokens=8).whole(ema)  # drafts, so no earlier request owes anything
        ema.force_steps(0)
        before = adaptive(ema)["zero_steps"]
        Case(easy[0], max_new_tokens=25).whole(ema)
        after = adaptive(ema)["zero_steps"]
        held, extends, writes = (after[what] - before[what] for what in ("held_rounds", "extends", "writes"))
        assert (after["extend_every"], after["reason"]) == (interval, None)
        assert (held, extends + writes) == (24 if times else 0, times) and abs(extends - writes) <= 1
    ema.force_steps(None)
    with pytest.raises(RequestError, match=r"400 .*extend_every: got 9; expected an integer from 1 to 8"):
        every(9)


@pytest.mark.parametrize("name", ["plain", "static"])
def test_server_without_the_flags(server: CpuServer, easy: list[str]) -> None:
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
