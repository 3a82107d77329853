"""The plan stream on a GPU: it serves and changes no token."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine.workload import Output, adaptive, run
from tests.gpu.servers import CASES, TIERS, Line, run_while_switching, serving_together, tiny_pair

VARIANTS: dict[str, dict[str, str]] = {"off": {}, "on": {"SGLANG_ENABLE_OVERLAP_PLAN_STREAM": "1"}}


@pytest.mark.parametrize("backend", ["fa3", "flashinfer"])
def test_the_plan_stream_changes_no_token(backend: str, tmp_path: Path) -> None:
    pair = tiny_pair(tmp_path, backend)
    found: dict[str, list[list[Output]]] = {}
    lines = [Line(tmp_path / f"{name}.log", pair, backend, TIERS, variables) for name, variables in VARIANTS.items()]
    with serving_together(*lines) as clients:
        for name, client in zip(VARIANTS, clients, strict=True):
            found[name] = []
            for steps in TIERS:
                client.force_steps(steps)
                found[name].append(run(client, CASES, at_once=1))
            run_while_switching(client)
            assert adaptive(client)["degraded"] is False
            assert len(adaptive(client)["recent_switches"]) > len(TIERS)
    for steps, on, off in zip(TIERS, found["on"], found["off"], strict=True):
        assert on == off, f"{steps} steps"
