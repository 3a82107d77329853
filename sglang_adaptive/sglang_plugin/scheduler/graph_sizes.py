"""Captures CUDA graphs of a runtime state only for the batch sizes at which its steps can be chosen.

SGLang 0.5.23 is meant to do this. It passes the list ``cuda_graph_bs_decode``, None unless ``--cuda-graph-bs-decode``
is given, and overrides that field for a state, but capture reads ``cuda_graph_config.decode``. So every state captures
every size.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from sglang_adaptive.runtime.start_up import Device
from sglang_adaptive.sglang_plugin.scheduler import further_captures

logger = logging.getLogger(__name__)


def ranks_pad_alike() -> bool:
    """Return whether all ranks of a round replay graphs of one batch size.

    Not so with attention DP where no layer gathers tokens, as with DeepEP, ``--moe-dense-tp-size 1`` and
    ``--enable-dp-lm-head``: each rank pads to its own batch, at which the steps of the largest could have no graph.
    """
    from sglang.srt.runtime_context import get_parallel
    from sglang.srt.utils.common import require_mlp_tp_gather

    return get_parallel().attn_dp_size == 1 or bool(require_mlp_tp_gather())


class GraphedDevice(Device):
    """The device of SGLang's worker."""

    def __init__(self, worker: Any, prune: bool) -> None:
        self._worker = worker
        self._prune = prune

    def graph_batch_sizes(self, passed: list[int] | None) -> list[int] | None:
        """Return the batch sizes captured for the launch steps: the configured list, cut to the request pool."""
        runner = self._worker._target_worker.model_runner.decode_cuda_graph_runner
        sizes = getattr(runner, "capture_bs", None)
        return sorted(sizes) if sizes else None

    def sizes_to_capture(self, wanted: list[int] | None, every: list[int] | None) -> list[int] | None:
        """Return *wanted*, or *every* where pruning is off or SGLang would drop each size of *wanted*."""
        if not self._prune or not wanted:
            return wanted if self._prune else every
        from sglang.srt.utils.common import get_cuda_graph_batch_size_alignment

        alignment = get_cuda_graph_batch_size_alignment()
        return wanted if any(size % alignment == 0 for size in wanted) else every

    def free_gigabytes(self) -> float | None:
        """Return SGLang's reading of free memory in GB, after the allocator's cache was released."""
        from sglang.srt.utils.common import get_available_gpu_memory

        return float(get_available_gpu_memory(self._worker.device, self._worker.gpu_id))


def build(
    original: Callable[..., Any],
    worker: Any,
    speculative_num_steps: int,
    speculative_num_draft_tokens: int,
    cuda_graph_bs: list[int] | None = None,
) -> Any:
    """Around EAGLEWorkerV2.build_adaptive_runtime_state: capture the given batch sizes only.

    An empty list captures nothing; None leaves the configured list.
    """
    arguments = (worker, speculative_num_steps, speculative_num_draft_tokens, cuda_graph_bs)
    with further_captures.for_further_depths():
        return _build_with_sizes(original, arguments, speculative_num_steps, cuda_graph_bs)


def _build_with_sizes(
    original: Callable[..., Any], arguments: tuple[Any, ...], steps: int, sizes: list[int] | None
) -> Any:
    if sizes is None:
        return original(*arguments)
    from sglang.srt.model_executor.cuda_graph_config import Backend, Phase, with_phase
    from sglang.srt.runtime_context import get_exec

    graph = get_exec().graph
    changes: dict[str, Any] = {"bs": list(sizes)} if sizes else {"backend": Backend.DISABLED}
    logger.info("adaptive: building %d steps with CUDA graphs for batch sizes %s", steps, list(sizes))
    with graph.override(cuda_graph_config=with_phase(graph.cuda_graph_config, Phase.DECODE, **changes)):
        return original(*arguments)
