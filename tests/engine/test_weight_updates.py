"""New weights while depths change and requests run: answers follow them, and the policy discounts its data.

The weights come from the target's own folder. This server's draft is the target's first two layers, so SGLang, which
loads a folder into both, leaves both unchanged.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from sglang_adaptive.lab.cpu_engine import models
from sglang_adaptive.lab.cpu_engine.server import CpuServer
from tests.engine.workload import Case, Expected, Output, adaptive, require_whole_pool, rotating_depth, rounds, run

TOLD = "adaptive: new weights (UpdateWeightFromDiskReqInput)"


def update(server: CpuServer, *, flush_cache: bool = True) -> None:
    if flush_cache:
        # SGLang refuses to flush while a round is in flight, as the last round is after the last request's text. This
        # call waits for it.
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
    """Like reinforcement learning: pause the requests, change the weights, continue with the cache as it is.

    Continues until rounds were left when the weights came.
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
