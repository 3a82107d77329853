"""Sliding-window slots for the widest tier."""

from __future__ import annotations

from typing import Any

from tests.repair_checks.parts import THREE_TIERS, published, written


def the_launch_depth_does_not_shrink_the_reserve() -> None:
    with written(THREE_TIERS) as path:
        by_launch = {steps: reserved(steps, speculative_adaptive_config=path) for steps in (1, 7)}
    assert by_launch[1] == by_launch[7], f"slots reserved by launch depth: {by_launch}"


def a_static_depth_reserves_its_own_width() -> None:
    assert reserved(1, speculative_adaptive=False) < reserved(7, speculative_adaptive=False)


def reserved(launch_steps: int, **resolved: Any) -> int:
    """Return the slots that SGLang reserves for 16 requests with a window of 128."""
    from sglang.srt.model_executor import pool_configurator

    width = {"speculative_num_steps": launch_steps, "speculative_num_draft_tokens": launch_steps + 1}
    schedule = {"max_running_requests": 16, "chunked_prefill_size": 2048, "disable_overlap_schedule": False}
    with published(device="cpu", page_size=1, **width, **schedule, **resolved):
        return int(pool_configurator.compute_swa_request_cap(page_size=1, window=128, attn_dp_size=1))
