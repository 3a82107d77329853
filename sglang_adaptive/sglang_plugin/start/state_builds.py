"""Builds the runtime states of all steps: each part in its own scope, with graphs for the sizes that need some.

- SGLang 0.5.23 is meant to capture a state only for batch sizes at which its steps can be chosen. It passes the list
  ``cuda_graph_bs_decode``, None unless ``--cuda-graph-bs-decode`` is given, and overrides that field for a state. But
  capture reads ``cuda_graph_config.decode``, so every state captures every size.
- SGLang builds all of a further state in the draft's scope, with its parallel groups and expert backends. With
  attention DP, capturing the target's graphs fails there because the draft's group is one rank ("output tensor size
  must be equal to world_size times input tensor size", seen on two H100s). Even without attention DP, a mixture of
  experts is captured with the draft's backends. Here further states are built after SGLang has left the draft's scope,
  and only the draft's parts in that scope.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sglang_adaptive.runtime.states import Device, SpecRuntimeState
from sglang_adaptive.sglang_plugin.contract import draft_placement
from sglang_adaptive.sglang_plugin.stages.fast_path.kv_only import swapped

logger = logging.getLogger(__name__)


def ranks_pad_alike() -> bool:
    """Return whether all ranks of a round replay graphs of the same batch size.

    They do not with attention DP where no layer gathers tokens, as with DeepEP, ``--moe-dense-tp-size 1`` and
    ``--enable-dp-lm-head``: each rank pads to its own batch, for which the steps of the largest may have no graph.
    """
    from sglang.srt.runtime_context import get_parallel
    from sglang.srt.utils.common import require_mlp_tp_gather

    return get_parallel().attn_dp_size == 1 or bool(require_mlp_tp_gather())


class GraphedDevice(Device):
    """The device of SGLang's worker."""

    def __init__(self, worker: Any, prune: bool) -> None:
        self._worker = worker
        self._prune = prune

    def graph_batch_sizes(self) -> list[int] | None:
        """Return the batch sizes captured for the launch steps: the configured list, cut to the request pool."""
        runner = self._worker._target_worker.model_runner.decode_cuda_graph_runner
        sizes = getattr(runner, "capture_bs", None)
        return sorted(sizes) if sizes else None

    def sizes_to_capture(self, wanted: list[int] | None, every: list[int] | None) -> list[int] | None:
        """Return *wanted*, or *every* if pruning is off or SGLang would drop every size of *wanted*."""
        if not self._prune or not wanted:
            return wanted if self._prune else every
        from sglang.srt.utils.common import get_cuda_graph_batch_size_alignment

        alignment = get_cuda_graph_batch_size_alignment()
        return wanted if any(size % alignment == 0 for size in wanted) else every

    def free_gigabytes(self) -> float | None:
        """Return free memory in GB as SGLang measures it, after releasing the allocator's cache."""
        from sglang.srt.utils.common import get_available_gpu_memory

        return float(get_available_gpu_memory(self._worker.device, self._worker.gpu_id))


def build_state(
    build: Callable[..., Any], worker: Any, speculative_num_steps: int, speculative_num_draft_tokens: int,
    cuda_graph_bs: list[int] | None = None,
) -> Any:  # fmt: skip
    """Return the state from *build*, a method of EAGLEWorkerV2 or another worker, with graphs for *cuda_graph_bs*.

    An empty list captures nothing; None keeps the configured list.
    """
    if cuda_graph_bs is not None:
        sizes = list(cuda_graph_bs)
        logger.info("adaptive: building %d steps with CUDA graphs for batch sizes %s", speculative_num_steps, sizes)
    with capturing(cuda_graph_bs):
        return build(worker, speculative_num_steps, speculative_num_draft_tokens, cuda_graph_bs)


@contextmanager
def capturing(sizes: list[int] | None) -> Iterator[None]:
    """Let SGLang capture graphs for the batch *sizes* inside the ``with``: none for an empty list, its own for None."""
    if sizes is None:
        yield
        return
    from sglang.srt.model_executor.cuda_graph_config import Backend, Phase, with_phase
    from sglang.srt.runtime_context import get_exec

    graph = get_exec().graph
    changes: dict[str, Any] = {"bs": list(sizes)} if sizes else {"backend": Backend.DISABLED}
    with graph.override(cuda_graph_config=with_phase(graph.cuda_graph_config, Phase.DECODE, **changes)):
        yield


def new_backend(runner: Any) -> Any:
    """Return a new attention backend of SGLang's *runner* for a further state, with its own buffers and workspace."""
    workspace = runner.init_new_workspace
    try:
        return runner._get_attention_backend(init_new_workspace=True)
    finally:
        runner.init_new_workspace = workspace


def target_parts(worker: Any, steps: int, width: int) -> tuple[Any, Any]:
    """Return the target's attention backend and its CUDA graphs for a verify pass of *width* tokens per request."""
    from sglang.srt.model_executor.cuda_graph_config import Backend, Phase, check_cuda_graph_backend
    from sglang.srt.model_executor.runner import DecodeCudaGraphRunner

    runner = worker._target_worker.model_runner
    backend = new_backend(runner)
    if check_cuda_graph_backend(Phase.DECODE, Backend.DISABLED):
        return backend, None
    graphs = DecodeCudaGraphRunner(
        runner, attn_backend=backend, speculative_num_steps=steps, speculative_num_draft_tokens=width
    )
    return backend, graphs


def draft_extend_state(worker: Any, width: int, sizes: list[int] | None) -> SpecRuntimeState:
    """Return a state that only extends the draft, by *width* tokens per request, with graphs for the batch *sizes*."""
    steps, draft = width - 1, worker._draft_worker
    logger.info("adaptive: building a draft extend of %d tokens with CUDA graphs for batch sizes %s", width, sizes)
    with (
        capturing(sizes),
        draft_parts_in_their_scope(draft, drafts_nothing=True),
        worker._override_worker_state(steps, width, cuda_graph_bs=sizes),
    ):
        draft.init_attention_backend()
        draft._capture_cuda_graphs()
        backend, graphs = draft.draft_extend_attn_backend, draft.cuda_graph_runner_for_draft_extend
    return SpecRuntimeState(steps, width, None, None, None, None, backend, graphs)


@contextmanager
def draft_parts_in_their_scope(draft: Any, drafts_nothing: bool = False) -> Iterator[None]:
    """Inside the ``with``, let SGLang's draft worker *draft* build its parts of a state in the draft's scope.

    If it *drafts_nothing*, as with lookups, the state has no attention backends or graphs for draft steps.
    """
    for name in ("init_attention_backend", "_capture_cuda_graphs"):
        setattr(draft, name, _draft_scope(draft, drafts_nothing)(getattr(draft, name)))
    try:
        yield
    finally:
        del draft.init_attention_backend, draft._capture_cuda_graphs


@contextmanager
def _draft_scope(draft: Any, drafts_nothing: bool) -> Iterator[None]:
    from sglang.srt.layers.moe.utils import speculative_moe_a2a_backend_context, speculative_moe_backend_context

    steps = 1 if drafts_nothing else draft.speculative_num_steps  # SGLang builds none for one step
    with (
        swapped((draft, {"speculative_num_steps": steps})),
        draft_placement(draft),
        speculative_moe_backend_context(),
        speculative_moe_a2a_backend_context(),
    ):
        yield
