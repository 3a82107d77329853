"""Lets the checks of later modules run with this package's hooks on the SGLang functions that they run."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from sglang_adaptive.policy.config import check_config
from sglang_adaptive.policy.ema import AdaptiveSpeculativeParams
from sglang_adaptive.runtime.controller import AdaptiveController
from sglang_adaptive.sglang_plugin import hooks
from sglang_adaptive.sglang_plugin.hooks import Process
from sglang_adaptive.sglang_plugin.rounds import Rounds
from sglang_adaptive.sglang_plugin.stage import set_current
from sglang_adaptive.sglang_plugin.start.controller import ForWorker
from tests.repair_checks.parts import LADDER, adaptive_worker

TARGETS = (
    *("EAGLEWorkerV2.init_cuda_graphs", "EAGLEWorkerV2.build_adaptive_runtime_state", "_build_trivial_verify_input"),
    *("_get_attention_backend", "is_disable_overlap_for_batch", "_handle_max_mamba_cache", "compute_swa_request_cap"),
    *("TritonSSUBackend.__call__", "resolve_compress_state_ring_size", "get_swa_ring_size"),
    *("cutedsl_moe_max_num_tokens", "_locate_str_stop_finished_len", "EAGLEWorkerV2.apply_runtime_state"),
    *("EAGLEWorkerV2.activate_step_by_batch", "on_verify_complete_cpu", "_resolve_spec_v2_tokens"),
)
"""Name suffixes of the functions."""


def prepare() -> None:
    """Install the hooks, and let the checks use this package's controller."""
    set_current(Rounds(None, None))
    hooks.install_now(hook for hook in hooks.hooks(Process.SCHEDULER) if hook.target.endswith(TARGETS))
    for module in ("feedback", "override_log", "tiers", "zero_step_sampling"):
        setattr(import_module(f"tests.repair_checks.{module}"), adaptive_worker.__name__, worker_in_a_round)


def worker_in_a_round(config: Any = LADDER, launch_steps: int = 3) -> Any:
    """Return the checks' worker with this package's controller, in a round that has begun."""
    worker = adaptive_worker(config, launch_steps)
    policy = AdaptiveSpeculativeParams(launch_steps, check_config(config, "test").options)
    controller = AdaptiveController(worker, policy)
    for state in worker.adaptive_controller._states.values():
        controller.states.register(state)
    worker.adaptive_controller = ForWorker(controller)
    worker.adaptive_controller._states = controller.states._states
    now = Rounds(worker, controller)
    set_current(now)
    return worker
