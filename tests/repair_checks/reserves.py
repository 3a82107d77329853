"""Memory for the widest tier: sliding-window slots, and a hybrid model's verify states."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tests.repair_checks.parts import THREE_TIERS, launched, written

STATE_BYTES, LAYERS = 48 << 20, 4
"""Of one request's state in all layers, as in a 30B hybrid model."""
REQUESTS, GIBIBYTES = 48, 60.0
WAYS: tuple[dict[str, Any], ...] = (
    {"max_mamba_cache_size": 200},
    {"max_mamba_cache_size": None, "disable_radix_cache": True},
    {"max_mamba_cache_size": None, "disable_radix_cache": False},
)
"""A given number of slots, as many as requests may run, and as many as fit."""


def the_launch_depth_shrinks_neither() -> None:
    with written(THREE_TIERS) as path:
        for reserved, ways in ((of_windows, ({},)), (of_states, WAYS)):
            for way in ways:
                found = {steps: reserved(steps, speculative_adaptive_config=path, **way) for steps in (1, 7)}
                assert found[1] == found[7], f"reserved by launch depth: {found}"


def a_static_depth_has_windows_of_its_own_width() -> None:
    assert of_windows(1, speculative_adaptive=False) < of_windows(7, speculative_adaptive=False)


def a_static_depth_pays_for_states_of_its_own_width() -> None:
    for way in WAYS:
        shallow, deep = (of_states(steps, speculative_adaptive=False, **way) for steps in (1, 7))
        assert shallow != deep and shallow[1] >= deep[1]
    assert deep[1] > 0 and deep[0] < GIBIBYTES, "the number of slots does not outlive the pricing"


def of_windows(launch_steps: int, **resolved: Any) -> int:
    """Return the slots that SGLang reserves for 16 requests with a window of 128."""
    from sglang.srt.model_executor import pool_configurator

    schedule = {"max_running_requests": 16, "chunked_prefill_size": 2048, "disable_overlap_schedule": False}
    with launched(launch_steps, page_size=1, **schedule, **resolved):
        return int(pool_configurator.compute_swa_request_cap(page_size=1, window=128, attn_dp_size=1))


def of_states(launch_steps: int, **resolved: Any) -> tuple[float, int]:
    """Return the GiB that SGLang leaves for the KV cache, and its number of state slots."""
    from sglang.srt.mem_cache.kv_cache_configurator import KVCacheConfigurator
    from sglang.srt.runtime_context import get_schedule
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    states = SimpleNamespace(layers=list(range(LAYERS)), mamba_cache_per_req=STATE_BYTES)
    configurator = SimpleNamespace(
        mambaish_config=SimpleNamespace(mamba2_cache_params=states),
        hybrid_gdn_config=None,
        hybrid_kda_config=None,
        pp_size=1,
        attn_dp_size=1,
        extra_mamba_cache_bytes_per_req=0,
        fused_entry_bytes=lambda sub_pool: None,
        spec_algorithm=SpeculativeAlgorithm.from_string("EAGLE3"),
        _calculate_mamba_ratio=lambda: KVCacheConfigurator._calculate_mamba_ratio(configurator),
    )
    with launched(launch_steps, max_running_requests=REQUESTS, mamba_full_memory_ratio=0.9, **resolved):
        left = KVCacheConfigurator._handle_max_mamba_cache(configurator, GIBIBYTES)
        return round(float(left), 6), int(get_schedule().max_mamba_cache_size)
