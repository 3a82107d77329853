"""A tier's target parts are built outside the draft's scope."""

from __future__ import annotations

from typing import Any
from unittest import mock

from tests.repair_checks.graph_sizes import graphs, on_a_gpu
from tests.repair_checks.parts import adaptive_worker, buildable

DRAFT, TARGET = ("draft backends", "draft graphs"), ("target backend", "target graphs")


def only_the_drafts_parts_of_a_tier_are_built_in_its_scope() -> None:
    seen = scopes()
    assert seen == dict.fromkeys(DRAFT, True) | dict.fromkeys(TARGET, False), seen


def scopes() -> dict[str, bool]:
    """Let a worker's controller build one tier; return for each part whether it was in the draft's scope."""
    from sglang.srt.runtime_context import get_flags
    from sglang.srt.speculative import eagle_worker_v2

    seen: dict[str, bool] = {}

    def note(part: str) -> Any:
        return lambda *_, **__: seen.update({part: get_flags().moe.speculative_context})

    with graphs(), on_a_gpu(), mock.patch.object(eagle_worker_v2, "DecodeCudaGraphRunner", note("target graphs")):
        worker = buildable(adaptive_worker(launch_steps=3))
        draft, runner = worker._draft_worker, worker._target_worker.model_runner
        draft.init_attention_backend, draft._capture_cuda_graphs = map(note, DRAFT)
        runner._get_attention_backend = note("target backend")
        runner.attn_backend = runner.decode_cuda_graph_runner = None
        states = worker.adaptive_controller._states
        del states[next(key for key, state in states.items() if state.speculative_num_steps == 1)]
        with mock.patch.object(eagle_worker_v2.BaseSpecWorker, "init_cuda_graphs"):
            worker.init_cuda_graphs()
    return seen
