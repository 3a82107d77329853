"""The checks of the patches, run with the plugin's hooks instead of a patch.

``TRITON_INTERPRET=1 python -m tests.plugin_repairs`` prints one JSON object: null for each check that passes, else the
reason.
"""

from __future__ import annotations

import json
from typing import Any

from sglang_adaptive.policy.config import check_config
from sglang_adaptive.policy.ema import AdaptiveSpeculativeParams
from sglang_adaptive.runtime.controller import AdaptiveController
from sglang_adaptive.sglang_plugin import current, hooks
from sglang_adaptive.sglang_plugin.hooks import Process
from sglang_adaptive.sglang_plugin.round import Round
from tests import checks
from tests.patch_checks import (
    feedback,
    first_end,
    graph_sizes,
    mamba_reserve,
    mamba_width,
    mixed_grammar,
    override_log,
    swa_reserve,
    target_backends,
    target_scope,
    zero_step_sampling,
)
from tests.patch_checks.parts import LADDER, THREE_TIERS, adaptive_worker, published, written
from tests.patch_checks.registry import Check

HOOKED = (
    *("EAGLEWorkerV2.init_cuda_graphs", "EAGLEWorkerV2.build_adaptive_runtime_state", "_build_trivial_verify_input"),
    *("_get_attention_backend", "is_disable_overlap_for_batch", "_handle_max_mamba_cache", "compute_swa_request_cap"),
    *("TritonSSUBackend.__call__", "resolve_compress_state_ring_size", "get_swa_ring_size"),
    *("cutedsl_moe_max_num_tokens", "_locate_str_stop_finished_len", "EAGLEWorkerV2.apply_runtime_state"),
    *("EAGLEWorkerV2.activate_step_by_batch", "on_verify_complete_cpu", "_resolve_spec_v2_tokens"),
)
"""Name suffixes of the SGLang functions that the checks run."""


def the_launch_depth_shrinks_no_ring_and_no_exchange() -> None:
    with written(THREE_TIERS) as path:
        by_launch = [_sizes(steps, speculative_adaptive_config=path) for steps in (1, 7)]
    assert by_launch[0] == by_launch[1], f"sizes by launch depth: {by_launch}"


def a_static_depth_has_sizes_of_its_own() -> None:
    few, many = (_sizes(steps, speculative_adaptive=False) for steps in (1, 7))
    assert all(less < more for less, more in zip(few, many, strict=True))


def _sizes(launch_steps: int, **resolved: Any) -> tuple[int, ...]:
    """Return the size of DeepSeek-V4's rings per request, and the most tokens in a MoE exchange."""
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
    feedback.results_do_not_switch_the_live_state,
    feedback.easy_text_leaves_zero_steps_although_results_come_late,
    override_log.ten_thousand_switches_leave_the_override_log_bounded,
    override_log.a_switch_logs_at_most_one_line,
    override_log.readback_has_the_live_width,
    override_log.another_source_in_between_keeps_its_place_in_the_override_log,
    first_end.of_two_stop_strings_the_first_in_the_text_ends_it,
    first_end.the_end_of_a_sequence_ends_it_before_a_stop_string,
    first_end.a_stop_string_across_two_rounds_ends_it,
)


def worker_in_a_round(config: Any = LADDER, launch_steps: int = 3) -> Any:
    """Return the checks' worker with this package's controller, in a round that has begun."""
    worker = adaptive_worker(config, launch_steps)
    policy = AdaptiveSpeculativeParams(launch_steps, config=check_config(config, "test"))
    controller = AdaptiveController(worker, policy)
    for state in worker.adaptive_controller._states.values():
        controller.register(state)
    worker.adaptive_controller = controller
    now = Round(worker, controller)
    now.exact = None
    current.use(now)
    return worker


def main() -> None:
    """Apply the hooks on HOOKED, run CHECKS and print the results."""
    hooks.install_now(hook for hook in hooks.hooks(Process.SCHEDULER) if hook.target.endswith(HOOKED))
    for module in (feedback, graph_sizes, override_log, target_scope, zero_step_sampling):
        setattr(module, adaptive_worker.__name__, worker_in_a_round)
    print(json.dumps(checks.run({check.__name__: check for check in CHECKS})))


if __name__ == "__main__":
    main()
