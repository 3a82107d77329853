"""Penalties and logit processors on servers: exact with this package, and not with SGLang's own verify."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sglang_adaptive.lab.cpu_engine.server import CpuServer
from tests.engine.workload import Case, Output, require_whole_pool, rotating_depth, run

FREQUENCY = 1.5


@pytest.fixture
def penalised(easy: list[str], hard: list[str]) -> list[Case]:
    """Greedy requests with a penalty that changes what follows a token."""
    sampling = {"ignore_eos": True, "frequency_penalty": FREQUENCY}
    return [Case(prompt, sampling=sampling) for prompt in (*easy[:5], *hard[:5])]


def test_penalised_text_is_that_without_speculation(
    ema: CpuServer, expected: Callable[[list[Case]], list[Output]], penalised: list[Case]
) -> None:
    with rotating_depth(ema):
        assert run(ema, penalised, at_once=4) == expected(penalised)
    require_whole_pool(ema)


@pytest.mark.xfail(raises=AssertionError, strict=True, reason="0.5.23: penalties lag by the tokens of a round")
def test_that_of_stock_speculation(
    static: CpuServer, expected: Callable[[list[Case]], list[Output]], penalised: list[Case]
) -> None:
    assert run(static, penalised, at_once=1) == expected(penalised)


@pytest.mark.xfail(raises=AssertionError, strict=True, reason="0.5.23: DFLASH verifies without penalties")
def test_that_of_a_block_drafter(
    blocks: CpuServer, expected: Callable[[list[Case]], list[Output]], penalised: list[Case]
) -> None:
    assert run(blocks, penalised, at_once=1) == expected(penalised)
