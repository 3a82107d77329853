"""On a GPU, a STANDALONE draft catches up after many zero-step rounds at once, and then drafts as before."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from sglang_adaptive.client import Client
from tests.engine.servers import adapting
from tests.engine.workload import Case, adaptive, answers, grown, wait_until
from tests.gpu.servers import STARTS, Line, serving_together, tiny_pair

STEPS, PENDING = 3, 32
"""Rounds that a draft of its own may leave pending."""
ENDLESS = 6000
"""Tokens of a request that a test aborts, however long a loaded host needs to look at the server."""
LATER = 200
"""Rounds with drafts that are measured, all while every request runs."""


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The model drafts for itself: nearly all drafts are correct, unless keys and values are missing."""
    folder = tmp_path_factory.mktemp("standalone")
    pair = tiny_pair(folder, "fa3")
    depths = adapting(folder, "config", {"throughput": {"candidate_steps": [0, 1, STEPS]}})
    extra = ("--speculative-algorithm", "STANDALONE", "--speculative-draft-model-path", pair[1], *depths)
    with serving_together(Line(folder / "server.log", pair, "fa3", extra=extra)) as (found,):
        yield found


@pytest.mark.parametrize("requests", [1, 3, len(STARTS)])
def test_drafts_are_as_right_after_many_rounds_without(client: Client, requests: int) -> None:
    prompts = [f"{start} the" for start in STARTS[:requests]]
    client.force_steps(STEPS)
    before = adaptive(client)
    answers(client, [Case(prompt, max_new_tokens=1200) for prompt in prompts], requests)
    usual = accepted_a_round(before, adaptive(client))

    client.force_steps(0)
    names = [f"long {number} of {requests}" for number in range(requests)]
    with ThreadPoolExecutor(requests) as pool:
        asked = [
            pool.submit(Case(prompt, max_new_tokens=ENDLESS).whole, client, rid=name)
            for prompt, name in zip(prompts, names, strict=True)
        ]
        try:
            # A request that joins ends the pending rounds of the others, and on a loaded host they join one by one.
            wait_until(lambda: running(client) == requests, "all run")
            begun = adaptive(client)
            wait_until(lambda: more(begun, adaptive(client), "rounds_by_tier", 0) >= 5 * PENDING, "many rounds ran")
            before = adaptive(client)
            client.force_steps(STEPS)
            drafted = partial(more, before, what="rounds_by_tier", steps=STEPS)
            wait_until(lambda: drafted(after=adaptive(client)) >= LATER, "it drafted for a while")
            after = adaptive(client)
            assert not any(answer.done() for answer in asked), "over before it was measured"
        finally:
            for name in names:
                client.abort(name)
    held, extends = (after["zero_steps"][what] - begun["zero_steps"][what] for what in ("held_rounds", "extends"))
    later = accepted_a_round(before, after)
    print(f"{requests} requests: {usual:.3f} accepted a round, {later:.3f} later; {held} rounds, {extends} extends")
    assert after["zero_steps"]["reason"] is None and held > 16 * extends
    assert later > 0.95 * usual


def accepted_a_round(before: dict[str, Any], after: dict[str, Any]) -> float:
    """Return the accepted drafts per round of STEPS steps and request of its batch."""
    accepted, drafted = (more(before, after, what, STEPS) for what in ("accepted_by_tier", "drafted_by_tier"))
    return STEPS * accepted / drafted


def running(client: Client) -> int:
    """Return the number of running requests that the server published last."""
    return int(client.get("/v1/loads")["loads"][0]["num_running_reqs"])


def more(before: dict[str, Any], after: dict[str, Any], what: str, steps: int) -> int:
    """Return by how much the count *what* of *steps* has grown."""
    return grown(before[what], after[what]).get(str(steps), 0)
