"""New weights while depths change and requests run: the answers are those of the weights, and the policy doubts.

The folder that the weights come from is the target's. The draft of this server is the target's first two layers, so
SGLang, which loads a folder into both, leaves either as it was.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from sglang_adaptive.lab.cpu_engine import models
from sglang_adaptive.lab.cpu_engine.server import CpuServer
from tests.engine.workload import Case, Output, adaptive, require_whole_pool, rotating_depth, rounds, run

Expected = Callable[[list[Case]], list[Output]]
TOLD = "adaptive: new weights (UpdateWeightFromDiskReqInput)"


def update(server: CpuServer, *, flush_cache: bool = True) -> None:
    if flush_cache:
        # SGLang refuses to flush while a round is in flight, as the last one is after the text of the last request;
        # this call waits for it.
        server.flush_cache()
    request = {"model_path": str(models.target_path()), "flush_cache": flush_cache}
    assert server.post("/update_weights_from_disk", request)["success"]


def told(server: CpuServer) -> int:
    return server.log_path.read_text().count(TOLD)


def test_between_requests(standalone: CpuServer, expected: Expected, easy: list[str], hard: list[str]) -> None:
    cases = [Case(prompt) for prompt in (*easy[:3], *hard[:3])]
    wanted, lines = expected(cases), told(standalone)
    with rotating_depth(standalone):
        for _ in range(2):
            assert run(standalone, cases, at_once=3) == wanted
            update(standalone)
        assert run(standalone, cases, at_once=3) == wanted
    assert told(standalone) == lines + 2
    assert not adaptive(standalone)["degraded"]
    require_whole_pool(standalone)


def test_in_the_middle_of_requests(standalone: CpuServer, expected: Expected, easy: list[str]) -> None:
    """As reinforcement learning does: hold the requests, change the weights, go on with the cache as it is.

    Goes on until rounds were left when the weights came.
    """
    cases = [Case(prompt) for prompt in easy[:2]]
    wanted, held = expected(cases), 0
    while not held:
        lines = told(standalone)
        with rotating_depth(standalone), ThreadPoolExecutor(len(cases)) as pool:
            streams = [case.stream(standalone) for case in cases]
            for stream in streams:
                next(stream)
            standalone.post("/pause_generation", {"mode": "in_place"})
            update(standalone, flush_cache=False)
            before = rounds(standalone)
            standalone.post("/continue_generation", {})
            last = list(pool.map(lambda stream: list(stream)[-1], streams))
        assert [Output.of(part) for part in last] == wanted
        assert told(standalone) == lines + 1
        held = rounds(standalone) - before
    require_whole_pool(standalone)


def test_what_was_learnt_counts_for_little(standalone: CpuServer, easy: list[str]) -> None:
    standalone.force_steps(3)
    run(standalone, [Case(prompt) for prompt in easy[:6]], at_once=3)
    before = adaptive(standalone)["acceptance"]
    update(standalone)
    after = adaptive(standalone)["acceptance"]
    standalone.force_steps(None)
    for now, then in zip(after, before, strict=True):
        assert now["probability"] == pytest.approx(then["probability"], abs=0.1)
        assert now["trials"] <= then["trials"]
    assert after[0]["trials"] < before[0]["trials"]
