"""GPU memory that is released and resumed: every depth's graphs, in place and after a switch, answer as before."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from sglang_adaptive.client import Client
from tests.engine.workload import Output, adaptive, run
from tests.gpu.servers import CASES, TIERS, Line, run_while_switching, serving_together, tiny_pair

SAVED = (
    *("--enable-memory-saver", "--enable-weights-cpu-backup", "--enable-draft-weights-cpu-backup"),
    *("--max-total-tokens", "1000000"),
)
LEAST_FREED = 3e9
"""Bytes: the pool of a million tokens has 4.1 GB for the target and half a GB for the draft."""


def free_bytes() -> int:
    import torch

    return int(torch.cuda.mem_get_info()[0])


def at_every_depth(client: Client) -> dict[int, list[list[Output]]]:
    """Return the answers at each held depth, one request at a time and all at once."""
    found = {}
    for steps in TIERS:
        client.force_steps(steps)
        found[steps] = [run(client, CASES, at_once) for at_once in (1, len(CASES))]
    return found


@pytest.mark.skipif(find_spec("torch_memory_saver") is None, reason="needs torch-memory-saver")
def test_every_depth_answers_as_before(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    line = Line(tmp_path / "server.log", tiny_pair(tmp_path, "fa3"), "fa3", TIERS, extra=SAVED)
    with serving_together(line) as (client,):
        before, freed = at_every_depth(client), []
        for tags in (["kv_cache"], ["kv_cache", "weights"], None):
            client.force_steps(None)
            client.flush_cache()  # waits until the scheduler is idle; SGLang ends if it is not as memory is released
            free = free_bytes()
            client.post("/release_memory_occupation", {"tags": tags})
            freed.append(free_bytes() - free)
            client.post("/resume_memory_occupation", {"tags": tags})
            after = at_every_depth(client)
            for steps in TIERS:
                alone, together = zip(before[steps], after[steps], strict=True)
                assert alone[0] == alone[1], f"{tags}, {steps} steps"
                same = sum(one == other for one, other in zip(*together, strict=True))
                record_property(f"{tags}, {steps} steps", same)
                assert same >= len(CASES) - 1, "more than a tie of bfloat16"
            switches = adaptive(client)["switches"]
            run_while_switching(client, 2 * CASES)
            state = adaptive(client)
            assert state["switches"] > switches + len(TIERS) and not state["degraded"]
        record_property("freed_bytes", freed)
        assert max(freed) > LEAST_FREED  # other servers of this GPU may start meanwhile
