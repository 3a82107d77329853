"""0010: CUDA graphs of a tier only for its batch sizes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any
from unittest import mock

from tests.patch_checks.on_cpu import buildable
from tests.patch_checks.parts import adaptive_worker, published
from tests.patch_checks.registry import kept, repaired

CAPTURED = [1, 2, 4, 8, 16]


@repaired
def a_tier_captures_only_its_batch_sizes() -> None:
    assert captured_by(3, 4, [1, 2]) == [[1, 2]], "capture did not follow the list that was passed"


@repaired
def a_tier_without_batch_sizes_captures_nothing() -> None:
    assert captured_by(3, 4, []) == [], "graphs were captured for a tier that no batch size uses"


@kept
def a_tier_without_a_list_captures_every_size() -> None:
    assert captured_by(3, 4, None) == [CAPTURED]


@repaired
def the_controller_is_told_what_was_captured() -> None:
    from sglang.srt.speculative import eagle_worker_v2

    told: list[Any] = []
    with graphs(), on_a_gpu():
        worker = buildable(adaptive_worker(launch_steps=3))
        worker._draft_worker.parallel_layout = None
        worker._target_worker.model_runner.attn_backend = None
        worker._target_worker.model_runner.decode_cuda_graph_runner = None
        worker.adaptive_controller.init_states = lambda cuda_graph_bs: told.append(cuda_graph_bs)
        with mock.patch.object(eagle_worker_v2.BaseSpecWorker, "init_cuda_graphs"), no_contexts():
            worker.init_cuda_graphs()
    assert told == [CAPTURED], f"the controller was passed {told}"


def captured_by(steps: int, width: int, sizes: list[int] | None) -> list[list[int]]:
    """Build a tier with SGLang's own code; return the sizes that its target graph runner would capture."""
    from sglang.srt.model_executor.runner.base_cuda_graph_runner import get_batch_sizes_to_capture
    from sglang.srt.runtime_context import get_exec
    from sglang.srt.speculative import eagle_worker_v2

    captured: list[list[int]] = []

    def capture(runner: Any, **_: Any) -> None:
        captured.append(get_batch_sizes_to_capture(runner, width)[0])

    with graphs(), on_a_gpu(), mock.patch.object(eagle_worker_v2, "DecodeCudaGraphRunner", capture):
        worker = buildable(adaptive_worker(launch_steps=1))
        runner = worker._target_worker.model_runner
        runner.req_to_token_pool = SimpleNamespace(size=64)
        runner.server_args = SimpleNamespace(dllm_algorithm=None)
        worker.build_adaptive_runtime_state(steps, width, cuda_graph_bs=sizes)
        left = get_exec().graph.cuda_graph_config.decode
        assert (left.bs, left.backend) == (CAPTURED, "full"), f"the configuration was left at {left}"
    return captured


@contextmanager
def graphs() -> Iterator[None]:
    """Publish a configuration whose decode phase captures CAPTURED."""
    from sglang.srt.model_executor.cuda_graph_config import CudaGraphConfig, PhaseConfig

    config = CudaGraphConfig(decode=PhaseConfig(backend="full", bs=list(CAPTURED), max_bs=CAPTURED[-1]))
    with published(device="cpu", cuda_graph_config=config, cuda_graph_bs_decode=None):
        yield


def on_a_gpu() -> AbstractContextManager[Any]:
    """Let the worker's module take the branches of a GPU."""
    from sglang.srt.speculative import eagle_worker_v2

    return mock.patch.object(eagle_worker_v2, "_is_cpu", False)


@contextmanager
def no_contexts() -> Iterator[None]:
    """Skip the draft's parallel groups, which need a launched server."""
    from sglang.srt.speculative import eagle_worker_v2

    names = ("draft_tp_context", "speculative_moe_backend_context", "speculative_moe_a2a_backend_context")
    with mock.patch.multiple(eagle_worker_v2, **dict.fromkeys(names, lambda *_, **__: nullcontext())):
        yield
