"""0014: Garbage collection while the graphs of the tiers are captured."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any
from unittest import mock

from tests.patch_checks.graph_sizes import no_contexts
from tests.patch_checks.parts import adaptive_worker, published
from tests.patch_checks.registry import kept, repaired

DRAFT = (
    *("draft_attn_backend", "cuda_graph_runner"),
    *("draft_extend_attn_backend", "cuda_graph_runner_for_draft_extend"),
)
TARGET = ("attn_backend", "decode_cuda_graph_runner")


@contextlib.contextmanager
def thawed() -> Iterator[None]:
    """Undo the check process's own freeze of its imports, as in a server.

    The checks look at what is frozen, not at what is collected: scanning all imports takes half a second each time.
    """
    gc.unfreeze()
    try:
        with mock.patch.object(gc, "collect"):
            yield
    finally:
        gc.freeze()


@repaired
@thawed()
def the_heap_is_frozen_once_for_all_tiers() -> None:
    """Checked between two tiers, and after one kind of graph of a tier."""
    from sglang.srt.model_executor.runner.base_cuda_graph_runner import freeze_gc
    from sglang.srt.speculative import eagle_worker_v2

    frozen: list[int] = []

    def build(**_: Any) -> Any:
        with freeze_gc(False):
            pass
        frozen.append(gc.get_freeze_count())
        return SimpleNamespace(speculative_num_steps=1)

    with ExitStack() as stack:
        stack.enter_context(published(device="cpu", cuda_graph_bs_decode=[1]))
        worker = adaptive_worker(launch_steps=3)
        draft, target = worker._draft_worker, worker._target_worker.model_runner
        draft.__dict__.update(dict.fromkeys(("parallel_layout", *DRAFT)))
        target.__dict__.update(dict.fromkeys(TARGET))
        two = {"init_states": lambda **_: [build(), build()], "build_states": lambda: [build(), build()]}
        worker.adaptive_controller = SimpleNamespace(register=lambda state: None, **two)
        stack.enter_context(no_contexts())
        for name in ("SpecRuntimeState", "check_cuda_graph_backend"):
            stack.enter_context(mock.patch.object(eagle_worker_v2, name))
        stack.enter_context(mock.patch.object(eagle_worker_v2.BaseSpecWorker, "init_cuda_graphs"))
        worker.init_cuda_graphs()
    assert all(frozen), f"nothing was frozen any more after a graph: {frozen}"
    assert gc.get_freeze_count() == 0, "the heap stayed frozen"


@kept
@thawed()
def a_capture_of_its_own_freezes_and_thaws() -> None:
    from sglang.srt.model_executor.runner.base_cuda_graph_runner import freeze_gc

    with freeze_gc(False):
        assert gc.get_freeze_count() > 0
    assert gc.get_freeze_count() == 0
    with freeze_gc(True):
        assert gc.get_freeze_count() == 0
