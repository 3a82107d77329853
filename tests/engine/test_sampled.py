"""Sampled text has the same distribution as without speculation, at one depth and while the depth switches."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from sglang_adaptive.audit.sampled import ALPHA, probability
from sglang_adaptive.lab.cpu_engine.server import CpuServer
from tests.campaign.clients import samples_of
from tests.engine.workload import rotating_depth

SAMPLES, POSITION = 210, 4
WAYS: list[dict[str, Any]] = [
    {"temperature": 2.5},
    {"temperature": 2.0, "top_k": 6, "top_p": 0.9},
]


@pytest.mark.parametrize("how", WAYS, ids=str)
def test_tokens_come_as_often_as_without_speculation(
    how: dict[str, Any], plain: CpuServer, static: CpuServer, ema: CpuServer, easy: list[str]
) -> None:
    wanted = samples_of(plain, easy[0], how, SAMPLES)
    held = samples_of(static, easy[0], how, SAMPLES)
    with rotating_depth(ema):
        switched = samples_of(ema, easy[0], how, SAMPLES)
    for ids in (held, switched):
        require_alike(ids, wanted)


@pytest.mark.parametrize("how", WAYS, ids=str)
def test_blocks_of_any_width_keep_how_often_tokens_come(
    how: dict[str, Any], plain: CpuServer, blocks: CpuServer, easy: list[str]
) -> None:
    wanted = samples_of(plain, easy[0], how, SAMPLES)
    with rotating_depth(blocks):
        require_alike(samples_of(blocks, easy[0], how, SAMPLES), wanted)


def require_alike(ids: list[list[int]], wanted: list[list[int]]) -> None:
    """Fail if the tokens at a position of *ids*, one answer per sample, are unlikely given those of *wanted*."""
    positions = range(1, POSITION + 1)
    assert any(len({one[at] for one in wanted}) > 2 for at in positions), "a text without a choice tells nothing"
    for at in positions:
        ours, theirs = (Counter(one[at] for one in answers) for answers in (ids, wanted))
        assert probability(ours, theirs) >= ALPHA, f"position {at}: {ours} and {theirs}"
