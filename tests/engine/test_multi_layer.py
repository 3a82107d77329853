"""Several draft layers, all of which draft in every round: served at every number of verified drafts."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sglang_adaptive.lab.cpu_engine.server import CpuServer
from tests.engine.servers import LAYERS
from tests.engine.workload import (
    Case,
    Output,
    adaptive,
    internal_state,
    require_while_switching,
    require_whole_pool,
    rotating_depth,
    run,
)

DEPTHS = tuple(range(LAYERS + 1))
Expected = Callable[[list[Case]], list[Output]]


@pytest.fixture
def cases(easy: list[str], hard: list[str]) -> list[Case]:
    """Text of both kinds, and ways to end other than by length."""
    return [
        *(Case(prompt) for pair in zip(easy[:4], hard[:4], strict=True) for prompt in pair),
        Case(easy[4] * 4),  # several prefill chunks
        Case(easy[5], max_new_tokens=1),
        Case(easy[6], sampling={"stop": [" ", "e"], "min_new_tokens": 9}),
    ]


@pytest.mark.parametrize("at_once", [1, 4])
def test_outputs_while_the_depth_switches(
    layers: CpuServer, expected: Expected, cases: list[Case], at_once: int
) -> None:
    # Of the default's 0, 1, 2, 3, 5 and 7 those that the layers draft.
    assert set(adaptive(layers)["tiers"]) == set(DEPTHS)
    require_while_switching(layers, cases, expected(cases), at_once)


def test_outputs_under_the_policy(layers: CpuServer, expected: Expected, cases: list[Case]) -> None:
    assert run(layers, cases, at_once=3) == expected(cases)
    assert adaptive(layers)["policy"] == "throughput"


@pytest.mark.parametrize("steps", DEPTHS)
def test_every_round_verifies_the_forced_number_of_drafts(layers: CpuServer, easy: list[str], steps: int) -> None:
    layers.force_steps(steps)
    before = adaptive(layers)["rounds_by_tier"]
    meta = Case(easy[0], max_new_tokens=24).whole(layers)["meta_info"]
    after, live = adaptive(layers)["rounds_by_tier"], internal_state(layers)
    layers.force_steps(None)
    grown = {tier: after[tier] - before.get(tier, 0) for tier in after if after[tier] != before.get(tier, 0)}
    assert grown == {str(steps): meta["spec_verify_ct"]}
    assert live["speculative_num_draft_tokens"] == steps + 1 and live["speculative_num_steps"] == LAYERS
    if steps == 0:
        assert meta["spec_verify_ct"] == 23  # the first token is the prefill's


def test_zero_steps_extend_the_draft(layers: CpuServer, easy: list[str]) -> None:
    """The first layer's keys and values of a text that was written without drafts are those of any text.

    The text is read again as a prompt, from the prefix cache. Later layers read drafted tokens at the end of a round,
    so what they hold does depend on its width.
    """
    rounds = []
    for before in (1, 0):
        layers.flush_cache()
        layers.force_steps(before)
        text = Case(easy[0], max_new_tokens=40).whole(layers)["text"]
        layers.force_steps(1)
        meta = Case(easy[0] + text, max_new_tokens=24).whole(layers)["meta_info"]
        assert meta["cached_tokens"] > meta["prompt_tokens"] - 4
        rounds.append(meta["spec_verify_ct"])
    layers.force_steps(None)
    assert rounds[0] == rounds[1]


def test_sampled_requests_are_served_at_every_depth(layers: CpuServer, easy: list[str]) -> None:
    with rotating_depth(layers):
        sampled = Case(easy[0], sampling={"temperature": 0.8, "top_p": 0.9, "ignore_eos": True})
        assert [len(output.ids) for output in run(layers, [sampled] * 4, at_once=2)] == [48] * 4
    require_whole_pool(layers)
