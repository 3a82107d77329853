"""Sampled text has the same distribution as without speculation while the depth switches."""

from __future__ import annotations

from collections import Counter

import pytest

from sglang_adaptive.audit.sampled import ALPHA, probability
from sglang_adaptive.lab.cpu_engine.server import CpuServer
from tests.campaign.clients import samples_of
from tests.engine.workload import rotating_depth

SAMPLES, POSITION = 210, 4
HOW = {"temperature": 2.0, "top_k": 6, "top_p": 0.9}


@pytest.mark.parametrize("name", ["ema", "blocks"])
def test_tokens_come_as_often_as_without_speculation(server: CpuServer, plain: CpuServer, easy: list[str]) -> None:
    wanted = samples_of(plain, easy[0], HOW, SAMPLES)
    with rotating_depth(server):
        require_alike(samples_of(server, easy[0], HOW, SAMPLES), wanted)


def require_alike(ids: list[list[int]], wanted: list[list[int]]) -> None:
    """Fail if the tokens at a position of *ids*, one answer per sample, are unlikely given those of *wanted*."""
    positions = range(1, POSITION + 1)
    assert any(len({one[at] for one in wanted}) > 2 for at in positions), "a text without a choice tells nothing"
    for at in positions:
        ours, theirs = (Counter(one[at] for one in answers) for answers in (ids, wanted))
        assert probability(ours, theirs) >= ALPHA, f"position {at}: {ours} and {theirs}"
