"""On a GPU, a STANDALONE draft catches up after many zero-step rounds at once, and then drafts as before."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from sglang_adaptive.client import Client
from tests.engine.workload import Case, adaptive, grown, wait_until
from tests.gpu.servers import answers, serving, tiny_pair

STARTS = ("In", "def", "On", "class", "By", "import", "a", "If")
STEPS, PENDING = 3, 32
"""Rounds that a draft of its own may leave pending."""


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The model drafts for itself: nearly all drafts are correct, unless keys and values are missing."""
    folder = tmp_path_factory.mktemp("standalone")
    pair, config = tiny_pair(folder, "fa3"), folder / "config.json"
    config.write_text(json.dumps({"throughput": {"candidate_steps": [0, 1, STEPS]}}))
    drafting = ("--speculative-algorithm", "STANDALONE", "--speculative-draft-model-path", pair[1])
    extra = (*drafting, "--speculative-adaptive-config", str(config))
    with serving(folder / "server.log", pair, "fa3", None, extra=extra) as found:
        yield found


@pytest.mark.parametrize("requests", [1, 3, len(STARTS)])
def test_drafts_are_as_right_after_many_rounds_without(client: Client, requests: int) -> None:
    cases = [Case(f"{start} the", max_new_tokens=1200) for start in STARTS[:requests]]
    client.force_steps(STEPS)
    before = adaptive(client)
    answers(client, cases, requests)
    usual = accepted_a_round(before, adaptive(client))

    client.force_steps(0)
    begun = adaptive(client)
    with ThreadPoolExecutor(requests) as pool:
        asked = [pool.submit(case.whole, client) for case in cases]
        wait_until(lambda: more(begun, adaptive(client), "rounds_by_tier", 0) >= 5 * PENDING, "many rounds have run")
        before = adaptive(client)
        assert not any(answer.done() for answer in asked), "over before it drafted"
        client.force_steps(STEPS)
    after = adaptive(client)
    held, extends = (after["zero_steps"][what] - begun["zero_steps"][what] for what in ("held_rounds", "extends"))
    later = accepted_a_round(before, after)
    print(f"{requests} requests: {usual:.3f} accepted a round, {later:.3f} later; {held} rounds, {extends} extends")
    assert after["zero_steps"]["reason"] is None and held > 16 * extends
    assert later > 0.95 * usual


def accepted_a_round(before: dict[str, Any], after: dict[str, Any]) -> float:
    """Return the accepted drafts per round of STEPS steps, over all requests together."""
    return more(before, after, "accepted_by_tier", STEPS) / more(before, after, "rounds_by_tier", STEPS)


def more(before: dict[str, Any], after: dict[str, Any], what: str, steps: int) -> int:
    """Return by how much the count *what* of *steps* has grown."""
    return grown(before[what], after[what]).get(str(steps), 0)
