"""DFLASH and DFlash2 on a GPU: outputs at every width match those without drafts, from graphs of each width."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sglang_adaptive.client import Client
from sglang_adaptive.lab.cpu_engine import models
from tests.engine.servers import BLOCK_DEPTHS, adapting
from tests.engine.worker_steps import choosing
from tests.engine.workload import Case, adaptive, answers
from tests.gpu.servers import STARTS, Line, serving_together, tiny_pair

CASES = [Case(f"{start} the", max_new_tokens=120) for start in STARTS]


def texts(client: Client, at_once: int) -> list[list[int]]:
    return [answer["output_ids"] for answer in answers(client, CASES, at_once)]


@pytest.mark.parametrize("kind", ["DFLASH", "DFlash2"])
def test_texts_are_those_without_drafts(
    kind: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    draft = choosing(tmp_path) if kind == "DFlash2" else models.block_draft_path()
    widths = adapting(tmp_path, "widths", {"throughput": {"candidate_steps": list(BLOCK_DEPTHS)}})
    extra = ("--speculative-algorithm", "DFLASH", "--speculative-draft-model-path", draft, *widths)
    line = Line(tmp_path / "dflash.log", tiny_pair(tmp_path, "fa3"), "fa3", extra=extra)
    with serving_together(line) as (client,):
        client.force_steps(0)
        plain = {at_once: texts(client, at_once) for at_once in (1, len(CASES))}
        for steps in (*BLOCK_DEPTHS[1:], None):
            client.force_steps(steps)
            for at_once, expected in plain.items():
                found = texts(client, at_once)
                same = sum(one == other for one, other in zip(found, expected, strict=True))
                record_property(f"{steps} x {at_once}", same)
                print(f"held at {steps}, {at_once} at once: {same} of {len(CASES)} texts equal")
                assert same >= len(CASES) - 1, "more than a tie of bfloat16"
        state = adaptive(client)
        assert all(state["rounds_by_tier"][str(steps)] > 0 for steps in BLOCK_DEPTHS) and not state["degraded"]
        assert state["accepted_by_tier"]["15"] > 0
