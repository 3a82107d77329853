"""Multi-layer EAGLE (MiMo-V2, Step-3.5): each draft token has a layer of its own, and all layers run in the extend.

SGLang 0.5.23 makes a round's drafts in the previous round's draft extend, one per layer, and verifies all of them. Here
all layers always draft, as many as the launch steps, and a round's steps are the number of these drafts that the target
verifies. A verify pass of n steps has n + 1 tokens per request, and so does the draft extend after it, so each number
of steps has attention backends and CUDA graphs for both. A round passes one draft per layer to the next round, in the
same shape after any number of steps. At zero steps the target decodes, and the layers still draft.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from sglang.srt.layers.moe.utils import speculative_moe_backend_context
from sglang.srt.runtime_context import get_spec
from sglang.srt.speculative.eagle_worker_v2 import EAGLEWorkerV2
from sglang.srt.speculative.multi_layer_eagle_worker_v2 import MultiLayerEagleWorkerV2
from sglang.srt.speculative.spec_utils import draft_pp_context

from sglang_adaptive.runtime.states import SpecRuntimeState
from sglang_adaptive.sglang_plugin.contract import draft_placement
from sglang_adaptive.sglang_plugin.stages.fast_path.kv_only import swapped
from sglang_adaptive.sglang_plugin.start.state_builds import target_parts
from sglang_adaptive.sglang_plugin.workers.own_rounds import NOTHING, OwnRounds, Parts, begin_rounds

_CHAIN = ("_topk1_parents_prealloc", "_topk1_score_indices_prealloc")
"""Attributes of SGLang's draft worker: chain links for the largest batch; shapes depend on the chain's length."""


class AdaptiveMultiLayerWorker(OwnRounds, MultiLayerEagleWorkerV2):  # type: ignore[misc]  # SGLang's types are not followed
    """SGLang's worker with the verify width that the controller chooses; implements the protocol AdaptiveWorker."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # EAGLE's method for a zero-step round's input, called on the draft worker, reads this.
        self._draft_worker._target_worker = self._target_worker
        self._chains: dict[int, dict[str, Any]] = {}
        self.rounds = begin_rounds(self)

    # -- start-up ---------------------------------------------------------------------------------------------

    def _build(self, steps: int, width: int, sizes: list[int] | None) -> SpecRuntimeState:
        draft = self._draft_worker
        extend = _extend_of(draft)
        chain = {name: getattr(draft, name) for name in _CHAIN}
        try:
            with get_spec().override(speculative_num_draft_tokens=width):
                with swapped((draft, {"speculative_num_steps": steps})):
                    draft._rebuild_topk1_chain_buffers()
                with draft_pp_context(), draft_placement(draft), speculative_moe_backend_context():
                    draft.init_attention_backend()
                    draft._capture_cuda_graphs()
                begin_within(draft.cuda_graph_runner_for_draft_extend)
                return self._state(target_parts(self, steps, width))
        finally:
            for name, links in chain.items():
                setattr(draft, name, links)
            _take_extend(draft, *extend)

    def _state(self, target: Parts, draft: Parts = NOTHING, extend: Parts = NOTHING) -> SpecRuntimeState:
        worker = self._draft_worker
        self._chains[self.speculative_num_steps] = {name: getattr(worker, name) for name in _CHAIN}
        return super()._state(target, extend=_extend_of(worker))

    def _take_width(self, width: int) -> None:
        self.speculative_num_steps = width - 1
        self.speculative_num_draft_tokens = self._draft_worker.speculative_num_draft_tokens = width

    # -- every round ------------------------------------------------------------------------------------------

    def _take_draft(self, state: SpecRuntimeState) -> None:
        draft = self._draft_worker  # whose steps stay the number of layers, like SGLang's setting
        for name, links in self._chains[state.speculative_num_steps].items():
            setattr(draft, name, links)
        _take_extend(draft, state.draft_extend_attn_backend, state.cuda_graph_runner_for_draft_extend)

    def forward_batch_generation(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
        if not (batch.forward_mode.is_extend() or batch.is_extend_in_batch):
            self.activate_step_by_batch(batch.seq_lens.shape[0])
        return super().forward_batch_generation(batch, *args, **kwargs)


def draft(original: Callable[..., Any], worker: Any, batch: Any) -> Any:
    """Draft with SGLang's *original*, and verify only the first drafts, as many as the round has steps."""
    steps, layers = worker.speculative_num_draft_tokens - 1, worker.speculative_num_steps
    if steps == 0:
        return EAGLEWorkerV2._build_trivial_verify_input(worker, batch)
    if steps == layers:
        return original(worker, batch)
    batch.spec_info = first_drafts(batch.spec_info, steps)
    with swapped((worker, {"speculative_num_steps": steps})):  # elsewhere its steps are all of its layers
        return original(worker, batch)


def first_drafts(drafted: Any, steps: int) -> Any:
    """Return a copy of SGLang's EagleDraftInput with the first *steps* drafts of each request.

    Its tensors, each [requests, drafts, ...], have a draft per layer. *drafted* does not change, because the scheduler
    keeps it with overlap.
    """
    first = copy.copy(drafted)
    first.topk_p, first.topk_index = drafted.topk_p[:, :steps], drafted.topk_index[:, :steps]
    if drafted.draft_probs is not None:
        first.draft_probs = drafted.draft_probs[:, :steps].contiguous()  # the sampler reads it without strides
    return first


def begin_within(graphs: Any) -> None:
    """Start each row of *graphs*, an extend's graphs of any width or None, with zero accepted drafts.

    SGLang 0.5.23 gathers one row of hidden states, at ``request * width + accepted drafts``, for every row of a graph.
    A row without a request has the accepted drafts of its last request, or 1 if there was none. In the graphs of a
    zero-step round, with one token per request, 1 is beyond the hidden states for the last row. A request leaves at
    most width - 1, which fits every row.
    """
    if graphs is not None:
        graphs.buffers.num_correct_drafts.zero_()


def _extend_of(draft: Any) -> Parts:
    return draft.draft_extend_attn_backend_list, draft.cuda_graph_runner_for_draft_extend


def _take_extend(draft: Any, backends: Any, graphs: Any) -> None:
    draft.draft_extend_attn_backend_list, draft.cuda_graph_runner_for_draft_extend = backends, graphs
    for runner, backend in zip(draft.draft_runner_list, backends, strict=True):
        if backend is not None:
            runner.attn_backend = backend
