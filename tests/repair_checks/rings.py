"""DeepSeek-V4's rings and the exchange of experts for the widest tier; no patch makes this repair."""

from __future__ import annotations

from typing import Any

from tests.repair_checks.parts import THREE_TIERS, launched, written


def the_launch_depth_shrinks_no_ring_and_no_exchange() -> None:
    with written(THREE_TIERS) as path:
        by_launch = [_sizes(steps, speculative_adaptive_config=path) for steps in (1, 7)]
    assert by_launch[0] == by_launch[1], f"sizes by launch depth: {by_launch}"


def a_static_depth_has_rings_of_its_own() -> None:
    few, many = (_sizes(steps, speculative_adaptive=False) for steps in (1, 7))
    assert all(less < more for less, more in zip(few, many, strict=True))


def the_most_steps_are_those_that_sglang_asserts() -> None:
    from types import SimpleNamespace

    from sglang.srt.mem_cache.deepseek_v4_memory_pool import get_compress_state_ring_size
    from sglang.srt.model_executor.pool_configurator import DSV4PoolConfigurator

    from sglang_adaptive.sglang_plugin.repairs import most_steps

    for ratios in ([0, 4, 128], [0, 128, 128]):
        most = most_steps({"architectures": ["DeepseekV4ForCausalLM"], "compress_ratios": ratios})
        rings = {ratio: get_compress_state_ring_size(ratio, 1) for ratio in ratios if ratio}
        pool = SimpleNamespace(ring_sizes=rings, num_layers=ratios.count)
        assert most is not None
        DSV4PoolConfigurator._assert_ring_serves_draft_tokens(pool, most + 1)
        try:
            DSV4PoolConfigurator._assert_ring_serves_draft_tokens(pool, most + 2)
        except AssertionError:
            continue
        raise AssertionError(f"SGLang serves more than {most} steps with the ratios {ratios}")
    assert most_steps({"architectures": ["DeepseekV3ForCausalLM"]}) is None


def _sizes(launch_steps: int, **resolved: Any) -> tuple[int, ...]:
    """Return the size of DeepSeek-V4's rings per request, and the most tokens in a MoE exchange."""
    from sglang.srt import runtime_context
    from sglang.srt.mem_cache import deepseek_v4_memory_pool as pool
    from sglang.srt.model_executor.cuda_graph_config import CudaGraphConfig, PhaseConfig

    graphs = CudaGraphConfig(decode=PhaseConfig(max_bs=64))
    with launched(launch_steps, max_prefill_tokens=16, cuda_graph_config=graphs, **resolved):
        rings = pool.resolve_compress_state_ring_size(2), pool.get_swa_ring_size(128, True)
        return (*rings, runtime_context.cutedsl_moe_max_num_tokens())
