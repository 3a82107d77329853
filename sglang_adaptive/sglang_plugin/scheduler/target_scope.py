"""Builds the parts of a further runtime state where they will run: the target's in the target's scope.

SGLang 0.5.23 builds a whole further state in the draft's scope: its parallel groups and its backends for experts. With
attention DP the capture of the target's graphs ends there, for the draft's group is one rank ("output tensor size must
be equal to world_size times input tensor size", seen on two H100s). A mixture of experts is captured with the draft's
backends, also without attention DP.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_DRAFT_PARTS = ("init_attention_backend", "_capture_cuda_graphs")
"""Methods of SGLang's draft worker that build the draft's parts of a state."""


def init_cuda_graphs(original: Callable[..., None], worker: Any) -> None:
    """Around EAGLEWorkerV2.init_cuda_graphs: build the further states once SGLang has left the draft's scope."""
    controller = worker.adaptive_controller
    if controller is None:
        original(worker)
        return
    asked: list[list[int] | None] = []
    build_states = controller.init_states
    controller.init_states = lambda cuda_graph_bs=None: asked.append(cuda_graph_bs)
    try:
        original(worker)
    finally:
        controller.init_states = build_states
    for cuda_graph_bs in asked:
        build_states(cuda_graph_bs=cuda_graph_bs)


def build(original: Callable[..., Any], worker: Any, *args: Any, **kwargs: Any) -> Any:
    """Around EAGLEWorkerV2.build_adaptive_runtime_state: build the draft's parts in the draft's scope, no others."""
    with _in_its_scope(worker._draft_worker):
        return original(worker, *args, **kwargs)


@contextmanager
def _in_its_scope(draft: Any) -> Iterator[None]:
    for name in _DRAFT_PARTS:
        setattr(draft, name, _scoped(draft, getattr(draft, name)))
    try:
        yield
    finally:
        for name in _DRAFT_PARTS:
            delattr(draft, name)


def _scoped(draft: Any, build: Callable[[], None]) -> Callable[[], None]:
    def scoped() -> None:
        from sglang.srt.layers.moe.utils import (
            speculative_moe_a2a_backend_context,
            speculative_moe_backend_context,
        )
        from sglang.srt.speculative.spec_utils import draft_tp_context

        with (
            draft_tp_context(draft.parallel_layout),
            speculative_moe_backend_context(),
            speculative_moe_a2a_backend_context(),
        ):
            build()

    return scoped
