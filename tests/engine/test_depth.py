"""The depth follows the text and the load."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from sglang_adaptive.lab.cpu_engine.server import CpuServer
from tests.engine.servers import TIERS
from tests.engine.workload import Case, adaptive, rounds, run_together

WITHIN = 60
"""Rounds within which a change of the text must show."""


def rounds_until(server: CpuServer, prompts: list[str], reached: Callable[[int], bool], limit: int) -> int:
    """Request short continuations one after the other until the live depth satisfies *reached*."""
    begin = rounds(server)
    for prompt in itertools.cycle(prompts):
        spent, depth = rounds(server) - begin, adaptive(server)["current_steps"]
        if reached(depth):
            return spent
        assert spent <= limit, f"depth {depth} after {spent} rounds"
        Case(prompt, max_new_tokens=8).whole(server)
    raise AssertionError("no prompts")


def is_low(depth: int) -> bool:
    return depth <= 1


def is_deepest(depth: int) -> bool:
    return depth == TIERS[-1]


def test_depth_rises_on_easy_text_and_falls_on_hard_text(ema: CpuServer, easy: list[str], hard: list[str]) -> None:
    rounds_until(ema, hard, is_low, limit=10 * WITHIN)
    for _ in range(2):
        up = rounds_until(ema, easy, is_deepest, WITHIN)
        down = rounds_until(ema, hard, is_low, WITHIN)
        assert 0 < up <= WITHIN and 0 < down <= WITHIN


def test_switches_say_what_caused_them(ema: CpuServer, easy: list[str]) -> None:
    rounds_until(ema, easy, is_deepest, limit=10 * WITHIN)
    before = adaptive(ema)
    assert before["recent_switches"][-1]["cause"] == "acceptance"
    run_together(ema, [Case(prompt, 96) for prompt in easy[:4]])  # the slot for four or more requests stops at 3 steps
    after = adaptive(ema)
    new = [switch for switch in after["recent_switches"] if switch not in before["recent_switches"]]
    assert any(s["cause"] == "batch size" and s["batch_size"] >= 4 and s["to_steps"] <= 3 for s in new)
