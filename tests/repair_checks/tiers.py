"""A tier is built with graphs of its batch sizes, outside the draft's scope, and with what a backend has to carry."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import SimpleNamespace
from typing import Any
from unittest import mock

from tests.repair_checks.parts import adaptive_worker, buildable, published

CAPTURED = [1, 2, 4, 8, 16]
DRAFT, TARGET = ("draft backends", "draft graphs"), ("target backend", "target graphs")


def prepare() -> None:
    """Keep each capture from scanning all that SGLang's modules hold, which takes two seconds."""
    import_module("sglang.srt.speculative.eagle_worker_v2")
    gc.freeze()


def a_tier_captures_only_its_batch_sizes() -> None:
    """None of them where no batch size uses it, and all without a list."""
    for sizes, captured in (([1, 2], [[1, 2]]), ([], []), (None, [CAPTURED])):
        assert captured_by(3, 4, sizes) == captured, sizes


def only_the_drafts_parts_of_a_tier_are_built_in_its_scope() -> None:
    """Of a tier that a worker's controller builds."""
    from sglang.srt.runtime_context import get_flags
    from sglang.srt.speculative import eagle_worker_v2

    seen: dict[str, bool] = {}

    def note(part: str) -> Any:
        return lambda *_, **__: seen.update({part: get_flags().moe.speculative_context})

    with building(note("target graphs")):
        worker = buildable(adaptive_worker(launch_steps=3))
        draft, runner = worker._draft_worker, worker._target_worker.model_runner
        draft.init_attention_backend, draft._capture_cuda_graphs = map(note, DRAFT)
        runner._get_attention_backend = note("target backend")
        runner.attn_backend = runner.decode_cuda_graph_runner = None
        states = worker.adaptive_controller._states
        del states[next(key for key, state in states.items() if state.speculative_num_steps == 1)]
        with mock.patch.object(eagle_worker_v2.BaseSpecWorker, "init_cuda_graphs"):
            worker.init_cuda_graphs()
    assert seen == dict.fromkeys(DRAFT, True) | dict.fromkeys(TARGET, False), seen


def a_tiers_backend_carries_its_names_and_the_runners_translator() -> None:
    from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
    from sglang.srt.mem_cache.kv_index_translator import KVIndexTranslator
    from sglang.srt.model_executor.model_runner import ModelRunner
    from sglang.srt.model_executor.model_runner_components import attention_backend_setup

    class Backend(AttentionBackend):  # type: ignore[misc]
        """A backend that computes nothing."""

    Backend.__abstractmethods__ = frozenset()

    runner = object.__new__(ModelRunner)
    runner.is_draft_worker, runner.draft_attention_backend = False, None
    runner.prefill_attention_backend_str = runner.decode_attention_backend_str = "fa3"
    runner.kv_index_translator = object.__new__(KVIndexTranslator)
    made = mock.patch.object(attention_backend_setup, "_build_resolved_backend", lambda **_: Backend())
    with published(device="cpu", attention_backend="fa3"), made:
        backend = runner._get_attention_backend(init_new_workspace=True)
    carried = backend.prefill_attention_backend_str, backend.decode_attention_backend_str
    assert carried == ("fa3", "fa3"), f"the backend names {carried}"
    assert backend.kv_index_translator is runner.kv_index_translator, "the backend has no translator"


def captured_by(steps: int, width: int, sizes: list[int] | None) -> list[list[int]]:
    """Build a tier with SGLang's own code; return the sizes that its target graph runner would capture."""
    from sglang.srt.model_executor.runner.base_cuda_graph_runner import get_batch_sizes_to_capture
    from sglang.srt.runtime_context import get_exec

    captured: list[list[int]] = []

    def capture(runner: Any, **_: Any) -> None:
        captured.append(get_batch_sizes_to_capture(runner, width)[0])

    with building(capture):
        worker = buildable(adaptive_worker(launch_steps=1))
        runner = worker._target_worker.model_runner
        runner.req_to_token_pool = SimpleNamespace(size=64)
        runner.server_args = SimpleNamespace(dllm_algorithm=None)
        worker.build_adaptive_runtime_state(steps, width, cuda_graph_bs=sizes)
        left = get_exec().graph.cuda_graph_config.decode
        assert (left.bs, left.backend) == (CAPTURED, "full"), f"the configuration was left at {left}"
    return captured


@contextmanager
def building(graph_runner: Any) -> Iterator[None]:
    """Let SGLang build tiers as on a GPU, with *graph_runner* for the target and graphs of CAPTURED."""
    from sglang.srt.model_executor.cuda_graph_config import CudaGraphConfig, PhaseConfig
    from sglang.srt.speculative import eagle_worker_v2

    config = CudaGraphConfig(decode=PhaseConfig(backend="full", bs=list(CAPTURED), max_bs=CAPTURED[-1]))
    with (
        published(device="cpu", cuda_graph_config=config, cuda_graph_bs_decode=None),
        mock.patch.multiple(eagle_worker_v2, _is_cpu=False, DecodeCudaGraphRunner=graph_runner),
    ):
        yield
