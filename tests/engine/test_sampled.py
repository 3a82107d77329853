"""Sampled text has the same distribution as without speculation while the depth switches."""

from __future__ import annotations

import pytest

from sglang_adaptive.audit.sampled import ALPHA, compared
from sglang_adaptive.lab.cpu_engine.server import CpuServer
from tests.campaign.clients import samples_of
from tests.engine.workload import rotating_depth

SAMPLES = 210
HOW = {"temperature": 2.0, "top_k": 6, "top_p": 0.9}


@pytest.mark.parametrize("name", ["ema", "blocks"])
def test_tokens_come_as_often_as_without_speculation(server: CpuServer, plain: CpuServer, easy: list[str]) -> None:
    wanted = samples_of(plain, easy[0], HOW, SAMPLES)
    assert any(len(set(at)) > 2 for at in list(zip(*wanted, strict=True))[1:]), "a text without a choice tells nothing"
    with rotating_depth(server):
        found = samples_of(server, easy[0], HOW, SAMPLES)
    unlikely = [one for one in compared(found, wanted) if one[2] < ALPHA]
    assert not unlikely
