"""CUDA graphs of a tier only for its batch sizes."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib import import_module
from types import SimpleNamespace
from typing import Any
from unittest import mock

from tests.repair_checks.parts import adaptive_worker, buildable, published

CAPTURED = [1, 2, 4, 8, 16]


def prepare() -> None:
    """Keep each capture from scanning all that SGLang's modules hold, which takes two seconds."""
    import_module("sglang.srt.speculative.eagle_worker_v2")
    gc.freeze()


def a_tier_captures_only_its_batch_sizes() -> None:
    """None of them where no batch size uses it, and all without a list."""
    for sizes, captured in (([1, 2], [[1, 2]]), ([], []), (None, [CAPTURED])):
        assert captured_by(3, 4, sizes) == captured, sizes


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
