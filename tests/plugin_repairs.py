"""The checks of the patches, with the plugin's hooks instead of a patch.

``TRITON_INTERPRET=1 python -m tests.plugin_repairs`` prints one JSON object: null for a check that holds, else why not.
"""

from __future__ import annotations

import json
from typing import Any

from sglang_adaptive.sglang_plugin.hooking import registry
from sglang_adaptive.sglang_plugin.hooking.hook import Process
from tests import checks
from tests.patch_checks import (
    graph_sizes,
    mamba_reserve,
    mamba_width,
    mixed_grammar,
    swa_reserve,
    target_backends,
    target_scope,
    zero_step_sampling,
)
from tests.patch_checks.parts import published, written
from tests.patch_checks.registry import Check

MODULES = ("scheduler.graph_sizes:", "scheduler.target_scope:", "repairs.")
LADDER = {"1": {"candidate_steps": [1, 3, 7]}}


def the_launch_depth_shrinks_no_ring_and_no_exchange() -> None:
    with written(LADDER) as path:
        by_launch = [_sizes(steps, speculative_adaptive_config=path) for steps in (1, 7)]
    assert by_launch[0] == by_launch[1], f"sizes by launch depth: {by_launch}"


def a_static_depth_has_sizes_of_its_own() -> None:
    few, many = (_sizes(steps, speculative_adaptive=False) for steps in (1, 7))
    assert all(less < more for less, more in zip(few, many, strict=True))


def _sizes(launch_steps: int, **resolved: Any) -> tuple[int, ...]:
    """Return DeepSeek-V4's rings of a request, and the most tokens of a MoE exchange."""
    from sglang.srt import runtime_context
    from sglang.srt.mem_cache import deepseek_v4_memory_pool as pool
    from sglang.srt.model_executor.cuda_graph_config import CudaGraphConfig, PhaseConfig

    width = {"speculative_num_steps": launch_steps, "speculative_num_draft_tokens": launch_steps + 1}
    graphs = CudaGraphConfig(decode=PhaseConfig(max_bs=64))
    with published(device="cpu", max_prefill_tokens=16, cuda_graph_config=graphs, **width, **resolved):
        rings = pool.resolve_compress_state_ring_size(2), pool.get_swa_ring_size(128, True)
        return (*rings, runtime_context.cutedsl_moe_max_num_tokens())


CHECKS: tuple[Check, ...] = (
    graph_sizes.a_tier_captures_only_its_batch_sizes,
    graph_sizes.a_tier_without_batch_sizes_captures_nothing,
    graph_sizes.a_tier_without_a_list_captures_every_size,
    zero_step_sampling.a_sampled_batch_may_run_at_zero_steps,
    target_backends.a_tiers_backend_carries_its_names_and_the_runners_translator,
    target_scope.the_targets_parts_of_a_tier_are_built_in_its_own_scope,
    target_scope.the_drafts_parts_of_a_tier_are_built_in_its_scope,
    swa_reserve.the_launch_depth_does_not_shrink_the_reserve,
    swa_reserve.a_static_depth_reserves_its_own_width,
    the_launch_depth_shrinks_no_ring_and_no_exchange,
    a_static_depth_has_sizes_of_its_own,
    mamba_reserve.the_launch_depth_does_not_shrink_the_verify_states,
    mamba_reserve.a_static_depth_pays_for_its_own_width,
    mamba_reserve.the_number_of_slots_outlives_the_pricing,
    mamba_width.a_narrow_round_writes_each_requests_states_in_its_own_rows,
    mamba_width.the_widest_round_writes_each_requests_states_in_its_own_rows,
    mixed_grammar.a_mixed_batch_waits_for_the_tokens_of_its_grammars,
    mixed_grammar.a_mixed_batch_without_grammars_overlaps,
    mixed_grammar.a_verify_with_a_grammar_overlaps,
    mixed_grammar.nothing_waits_without_pending_results,
)


def main() -> None:
    """Apply the hooks of MODULES, run CHECKS and print what came out."""
    wanted = registry.hooks(Process.SCHEDULER)
    registry.add_and_apply(hook for hook in wanted if hook.function.startswith(MODULES))
    print(json.dumps(checks.run({check.__name__: check for check in CHECKS})))


if __name__ == "__main__":
    main()
