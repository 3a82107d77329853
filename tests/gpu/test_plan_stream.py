"""The plan stream on a GPU: it serves and changes no token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sglang_adaptive.client import Client
from tests.engine.workload import Case, Output, adaptive, rotating_depth, run
from tests.gpu.servers import STARTS, Line, serving_together, tiny_pair

TIERS = (0, 1, 3, 7)
VARIANTS: dict[str, dict[str, str]] = {"off": {}, "on": {"SGLANG_ENABLE_OVERLAP_PLAN_STREAM": "1"}}


def outputs(client: Client) -> dict[str, Any]:
    """Return the answers at every held depth, and while the depth rotates, eight requests at a time."""
    cases = [Case(f"{start} the", max_new_tokens=96) for start in STARTS]
    found: dict[str, Any] = {}
    for steps in TIERS:
        client.force_steps(steps)
        found[str(steps)] = run(client, cases, at_once=1)
    with rotating_depth(client):
        found["switching"] = run(client, cases, at_once=len(cases))
    return found


@pytest.mark.parametrize("backend", ["fa3", "flashinfer"])
def test_the_plan_stream_changes_no_token(backend: str, tmp_path: Path) -> None:
    pair = tiny_pair(tmp_path, backend)
    found: dict[str, dict[str, Any]] = {}
    lines = [Line(tmp_path / f"{name}.log", pair, backend, TIERS, variables) for name, variables in VARIANTS.items()]
    with serving_together(*lines) as clients:
        for name, client in zip(VARIANTS, clients, strict=True):
            found[name] = outputs(client)
            assert adaptive(client)["degraded"] is False
            assert len(adaptive(client)["recent_switches"]) > len(TIERS)
    for steps in map(str, TIERS):
        assert found["on"][steps] == found["off"][steps], f"{steps} steps"
    for name in VARIANTS:
        switched: list[Output] = found[name]["switching"]
        # bf16 ties may differ at another width, and which round runs at which depth depends on timing.
        assert [output.completion_tokens for output in switched] == [96] * len(switched)
