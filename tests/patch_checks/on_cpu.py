"""0005: Tiers on CPU."""

from __future__ import annotations

from inspect import signature
from types import SimpleNamespace
from typing import Any
from unittest import mock

from tests.patch_checks.parts import adaptive_worker, published
from tests.patch_checks.registry import repaired


@repaired
def a_tier_on_cpu_gets_no_cuda_graph() -> None:
    from sglang.srt.speculative import eagle_worker_v2

    graphs: list[int] = []

    def capture(runner: Any, *, speculative_num_steps: int, **_: Any) -> None:
        graphs.append(speculative_num_steps)

    with published(device="cpu"), mock.patch.object(eagle_worker_v2, "DecodeCudaGraphRunner", capture):
        worker = buildable(adaptive_worker(launch_steps=3))
        state = worker.build_adaptive_runtime_state(7, 8)
    assert graphs == [], f"a CUDA graph was captured for {graphs} steps"
    assert (state.speculative_num_steps, state.target_graph_runner) == (7, None), state


def buildable(worker: Any) -> Any:
    """Give *worker* everything that building a tier needs except graphs; nothing in it computes."""
    from sglang.srt.speculative.spec_utils import draft_tp_context

    draft, target = worker._draft_worker, worker._target_worker
    for name in ("draft_attn_backend", "draft_extend_attn_backend", "cuda_graph_runner"):
        setattr(draft, name, None)
    draft.cuda_graph_runner_for_draft_extend = None
    draft.speculative_num_steps, draft.speculative_num_draft_tokens = 3, 4
    draft.draft_runner.draft_attn_backend = draft.draft_runner.attn_backend = None
    draft.init_attention_backend = draft._capture_cuda_graphs = lambda: None
    if "owns_attention" in signature(draft_tp_context).parameters:
        draft.draft_owns_attention = False  # SGLang 0.5.22
    else:
        draft.parallel_layout = SimpleNamespace(tp_group=None)
    target.model_runner.init_new_workspace = False
    target.model_runner._get_attention_backend = lambda init_new_workspace: "backend"
    worker.device, worker.gpu_id = "cpu", 0
    worker._additional_graph_memory_usage, worker._additional_graph_time_usage = {}, {}
    return worker
