"""Requests that end early leave nothing behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from sglang_adaptive.lab.cpu_engine.server import CpuServer
from tests.engine.servers import CHUNK
from tests.engine.workload import Case, Output, require_whole_pool, rotating_depth, rounds, run

ENDLESS = 4900
"""More tokens than any client waits for: the room of the context of 8192 after the long prompt."""


@pytest.fixture(autouse=True)
def healthy_afterwards(
    ema: CpuServer, expected: Callable[[list[Case]], list[Output]], easy: list[str], hard: list[str]
) -> Iterator[None]:
    """After every test, check slots, that far fewer rounds ran than a full answer takes, and an unchanged output."""
    ema.force_steps(0)  # one token per round
    before = rounds(ema)
    yield
    require_whole_pool(ema)
    assert rounds(ema) - before < ENDLESS
    ema.force_steps(None)
    cases = [Case(easy[0]), Case(hard[0])]
    assert run(ema, cases, at_once=2) == expected(cases)


def test_several_clients_that_go_away_while_the_depth_switches(ema: CpuServer, easy: list[str]) -> None:
    streams = [Case(prompt, ENDLESS).stream(ema) for prompt in easy[:4]]
    with rotating_depth(ema):
        for stream in streams:
            next(stream)
        for stream in streams:
            stream.close()


def test_abort_from_the_first_moment(ema: CpuServer, easy: list[str]) -> None:
    """The abort hits the request in transit, waiting, between two prefill chunks, or decoding."""
    case = Case((" ".join(easy) * CHUNK)[: 12 * CHUNK], ENDLESS)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(case.whole, ema, "long-prompt")
        while not answer.done():
            ema.abort("long-prompt")
        assert answer.result()["meta_info"]["finish_reason"]["type"] == "abort"


def test_abort_all(ema: CpuServer, easy: list[str]) -> None:
    streams = [Case(prompt, ENDLESS).stream(ema) for prompt in easy[:3]]
    for stream in streams:
        next(stream)
    ema.post("/abort_request", {"abort_all": True})
    for stream in streams:
        *_, last = stream
        assert last["meta_info"]["finish_reason"]["type"] == "abort"
