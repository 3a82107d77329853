"""Adaptive output equals the output without speculation, token for token, while the depth keeps changing.

Sampled text has the same distribution.
"""

from __future__ import annotations

from typing import Any

import pytest

from sglang_adaptive.audit.sampled import ALPHA, compared
from sglang_adaptive.client import RequestError
from sglang_adaptive.lab.cpu_engine.server import CpuServer
from tests.campaign.clients import samples_of
from tests.engine.servers import CHUNK, TIERS
from tests.engine.workload import (
    Case,
    Expected,
    require_while_switching,
    require_whole_pool,
    rotating_depth,
    run,
    tokens,
)

LENGTHS = (1, 2, 17, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 41, 3 * CHUNK)
"""Tokens in a prompt: from one to several prefill chunks."""
SAMPLES = 210
SAMPLING = {"temperature": 2.0, "top_k": 6, "top_p": 0.9}


@pytest.fixture
def cases(plain: CpuServer, easy: list[str], hard: list[str]) -> list[Case]:
    """Prompts of every length, alternating between both families, and ways to end other than by length."""
    by_length = [Case(_tokens(plain, hard if index % 2 else easy, length)) for index, length in enumerate(LENGTHS)]
    return [
        *by_length,
        Case(easy[3], sampling={"ignore_eos": True, "frequency_penalty": 1.5}),
        Case(easy[0], max_new_tokens=1),
        Case(hard[0], max_new_tokens=2),
        Case(easy[1], sampling={}),
        Case(easy[2], sampling={"stop": [" ", "e"], "min_new_tokens": 9}),
        Case(hard[1], sampling={"stop_token_ids": list(range(64, 80))}),
    ]


def _tokens(plain: CpuServer, texts: list[str], length: int) -> tuple[int, ...]:
    text = " ".join(texts * (1 + length // sum(map(len, texts))))
    return tuple(tokens(plain, text)[-length:])


@pytest.mark.parametrize("at_once", [1, 8])
def test_outputs_while_the_depth_switches(ema: CpuServer, expected: Expected, cases: list[Case], at_once: int) -> None:
    wanted = expected(cases)
    assert any(len(output.ids) == 48 for output in wanted)
    require_while_switching(ema, cases, wanted, at_once)


def test_outputs_under_the_policy(ema: CpuServer, expected: Expected, cases: list[Case]) -> None:
    assert run(ema, cases, at_once=3) == expected(cases)
    require_whole_pool(ema)


@pytest.mark.parametrize("prompt", [{"text": ""}, {"text": ["a", ""]}, {"input_ids": [[]]}], ids=str)
def test_a_prompt_without_tokens_is_refused_and_the_server_goes_on(
    ema: CpuServer, expected: Expected, cases: list[Case], prompt: dict[str, Any]
) -> None:
    with pytest.raises(RequestError, match=r"400 .*The input has no tokens"):
        ema.post("/generate", {**prompt, "sampling_params": {"max_new_tokens": 2}})
    assert run(ema, cases[:1], 1) == expected(cases[:1])
    require_whole_pool(ema)


def test_a_grammar_s_end_is_the_end_with_speculation_and_a_token_later_without(
    ema: CpuServer, plain: CpuServer, static: CpuServer, easy: list[str]
) -> None:
    """SGLang without speculation looks for the end before it passes a token to the grammar; exactness.md says so."""

    def asked(server: CpuServer, **more: Any) -> tuple[int, ...]:
        return run(server, [Case(easy[0], 24, {"regex": "(ab){3}", **more})], 1)[0].ids

    ends = asked(plain, ignore_eos=False)
    assert len(ends) == 7
    late = asked(plain, ignore_eos=True)
    assert late[:-1] == ends, "one token more, which the grammar does not constrain"
    for steps in TIERS:
        ema.force_steps(steps)
        assert asked(ema, ignore_eos=True) == asked(ema, ignore_eos=False) == ends
    ema.force_steps(None)
    assert asked(static, ignore_eos=True) == asked(static, ignore_eos=False) == ends, "as stock does"


def test_draft_trees_fall_back_without_loss(tree: CpuServer, expected: Expected, cases: list[Case]) -> None:
    assert run(tree, cases[-5:], at_once=2) == expected(cases[-5:])


@pytest.mark.parametrize("name", ["ema", "blocks"])
def test_tokens_come_as_often_as_without_speculation(server: CpuServer, plain: CpuServer, easy: list[str]) -> None:
    wanted = samples_of(plain, easy[0], SAMPLING, SAMPLES)
    assert any(len(set(at)) > 2 for at in list(zip(*wanted, strict=True))[1:]), "a text without a choice tells nothing"
    with rotating_depth(server):
        found = samples_of(server, easy[0], SAMPLING, SAMPLES)
    unlikely = [one for one in compared(found, wanted) if one[2] < ALPHA]
    assert not unlikely
