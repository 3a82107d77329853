"""DFLASH: a draft that proposes a whole block in one pass; the target verifies all of it.

SGLang 0.5.23 sizes buffers, attention backends and CUDA graphs by one ``block_size``, the tokens of a block: the last
accepted one, and a mask for each draft. Here n steps are a block of n + 1 tokens, with separate buffers, draft graph
and verify graph for each number of steps. The launch block is the widest. What a round passes to the next one (the
bonus token and the request's length) does not depend on its width.

The draft attends to keys and values that it makes from the target's hidden states with a few projections, without a
draft pass. SGLang makes them right after each verify. At zero steps the block is only the last accepted token, the
draft model does not run, and keys and values of several rounds are made together, at the latest before a block is
drafted.

A DFlash2 draft chooses each draft token from a few candidates, given the previous one; for sampled requests the verify
needs the probabilities of these choices.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from sglang.srt.layers.logits_processor import LogitsProcessorOutput
from sglang.srt.model_executor.cuda_graph_config import Backend, Phase, check_cuda_graph_backend
from sglang.srt.model_executor.model_runner import ModelRunnerOutput
from sglang.srt.model_executor.runner import DecodeCudaGraphRunner
from sglang.srt.runtime_context import get_spec, max_speculative_num_draft_tokens
from sglang.srt.speculative.dflash_worker_v2 import DFlashWorkerV2
from sglang.srt.speculative.draft_worker_common import (
    build_block_pos_offsets,
    make_draft_block_spec_info,
    make_draft_sampler_capture_hook,
)
from sglang.srt.speculative.spec_utils import draft_pp_context

from sglang_adaptive.runtime.states import SpecRuntimeState
from sglang_adaptive.sglang_plugin.contract import draft_placement
from sglang_adaptive.sglang_plugin.notes import note_of
from sglang_adaptive.sglang_plugin.stages.fast_path.kv_only import swapped
from sglang_adaptive.sglang_plugin.stages.zero_steps.left_for_later import DeferredAppend
from sglang_adaptive.sglang_plugin.start.state_builds import new_backend, target_parts
from sglang_adaptive.sglang_plugin.workers.own_rounds import NOTHING, OwnRounds, Parts, begin_rounds, parts_of

logger = logging.getLogger(__name__)

_BUFFERS = (
    *("_draft_block_ids_buf", "_draft_block_positions_buf", "_draft_block_tokens_buf", "_draft_block_end_buf"),
    *("_draft_verify_out_cache_loc_buf", "_draft_seq_lens_cpu_buf"),
    *("_accept_len_buf", "_commit_lens_bufs", "_bonus_id_bufs", "_out_tokens_bufs", "_new_seq_lens_bufs"),
)
"""SGLang's tensors of a round, made on first use; most have a row per request and a column per token."""
_COUNTS = ("_accept_bonus_buffer_cap", "_accept_bonus_buffer_slot")
_CONSTANTS = ("_block_pos_offsets", "_draft_block_spec_info")


class AdaptiveDFlashWorker(OwnRounds, DFlashWorkerV2):  # type: ignore[misc]  # SGLang's types are not followed
    """SGLang's worker with the width that the controller chooses; implements the protocol AdaptiveWorker."""

    block_size: int
    _draft_probs_buf: torch.Tensor | None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.speculative_num_steps = most = self.block_size - 1
        self._buffers: dict[int, dict[str, Any]] = {}
        """By width, the attributes that ``_take_width`` keeps of widths that are not live."""
        self._samplers: dict[int, Any] = {}
        """By width, the sampler inside the draft's graphs: it takes the likeliest tokens or chooses candidates."""
        self.deferred: DeferredAppend | None = None
        self._zero_step_batch: Any = None
        """The batch of the running round, if it is a zero-step round."""
        self._appended = True
        self.rounds = begin_rounds(self)
        if most not in self.rounds.controller.policy.candidate_steps:
            logger.warning(
                "adaptive: rounds are narrower than the block of %d tokens: add %d to the candidate steps",
                self.block_size,
                most,
            )

    # -- start-up ---------------------------------------------------------------------------------------------

    def init_cuda_graphs(self) -> None:
        super().init_cuda_graphs()
        self.deferred = next(iter(self.rounds.of(DeferredAppend)), None)

    def _launch_state(self) -> SpecRuntimeState:
        self._samplers[self.block_size] = self._draft_sampler
        return self._state(parts_of(self._target_worker.model_runner), parts_of(self.draft_model_runner))

    def _build(self, steps: int, width: int, sizes: list[int] | None) -> SpecRuntimeState:
        with get_spec().override(speculative_num_draft_tokens=width):
            draft = self._draft_parts(steps, width)
            return self._state(target_parts(self, steps, width), draft)

    def _draft_parts(self, steps: int, width: int) -> Parts:
        """Return the draft's attention backend and its CUDA graphs for blocks of *width*."""
        runner = self.draft_model_runner
        if steps == 0:
            return NOTHING
        with draft_pp_context(), draft_placement(self):
            backend = new_backend(runner)
            # SGLang captures none if memory is short, whatever the target has.
            captured = isinstance(runner.decode_cuda_graph_runner, DecodeCudaGraphRunner)
            if not captured or check_cuda_graph_backend(Phase.DECODE, Backend.DISABLED):
                return backend, None
            self._samplers[width] = self._draft_sampler = self._maybe_build_draft_sampler()
            sampler = self._draft_sampler
            runner.capture_tail_hooks[:] = [] if sampler is None else [make_draft_sampler_capture_hook(sampler)]
            graphs = DecodeCudaGraphRunner(
                runner, attn_backend=backend, speculative_num_steps=steps, speculative_num_draft_tokens=width
            )
        return backend, graphs

    def _take_width(self, width: int) -> None:
        self._buffers[self.block_size] = {name: getattr(self, name) for name in (*_BUFFERS, *_COUNTS, *_CONSTANTS)}
        for name, value in (self._buffers.get(width) or self._new_buffers(width)).items():
            setattr(self, name, value)
        self.block_size = self.speculative_num_draft_tokens = width
        self.speculative_num_steps = width - 1
        self._draft_sampler = self._samplers.get(width)
        self.draft_model.set_block_size(width)
        if self._draft_probs_buf is not None and width > 1:
            self._draft_probs_buf = _chances_of(self._draft_probs_buf, width - 1)

    def _new_buffers(self, width: int) -> dict[str, Any]:
        constants = {
            "_block_pos_offsets": build_block_pos_offsets(length=width, device=self.device),
            "_draft_block_spec_info": make_draft_block_spec_info(draft_token_num=width, device=self.device),
        }
        return {**dict.fromkeys(_BUFFERS), **dict.fromkeys(_COUNTS, 0), **constants}

    # -- every round ------------------------------------------------------------------------------------------

    def _take_draft(self, state: SpecRuntimeState) -> None:
        if state.speculative_num_steps:  # zero steps have no backend and graphs
            draft = self.draft_model_runner
            draft.attn_backend, draft.decode_cuda_graph_runner = state.draft_attn_backend, state.cuda_graph_runner

    def forward_batch_generation(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
        if batch.forward_mode.is_extend() or batch.is_extend_in_batch:
            return super().forward_batch_generation(batch, *args, **kwargs)
        requests = batch.seq_lens.shape[0]
        self.activate_step_by_batch(requests)
        if self.selector is not None:
            # A sampler is as large as the graphs of its width, and SGLang would fill it in for any batch.
            chooses = self._samplers.get(self.block_size)
            self._draft_sampler = chooses if chooses and len(chooses.temperatures) >= requests else None
        if self.speculative_num_steps:
            if self.deferred is not None:
                self.deferred.before_draft(super()._append_target_hidden_to_draft_kv_by_loc, batch)
            return super().forward_batch_generation(batch, *args, **kwargs)
        self._appended = True
        with swapped((self, {"_zero_step_batch": batch})), _without_a_pass(self.draft_model_runner):
            result = super().forward_batch_generation(batch, *args, **kwargs)
        note_of(result, self.rounds.controller.states).extended = self._appended
        return result

    def _propose_selector_block(self, *, bs: int, anchor_token_ids: torch.Tensor, **given: Any) -> torch.Tensor:
        """Return what a DFlash2 draft chooses, [bs, drafts]; a block of one token has no candidates."""
        if not self.speculative_num_steps:
            return anchor_token_ids.new_empty(bs, 0)
        found: torch.Tensor = super()._propose_selector_block(bs=bs, anchor_token_ids=anchor_token_ids, **given)
        return found

    def _append_target_hidden_to_draft_kv_by_loc(self, **rows: Any) -> None:
        """Make the draft's keys and values from hidden states; defer that in a zero-step round."""
        append = super()._append_target_hidden_to_draft_kv_by_loc
        if self.deferred is None or self._zero_step_batch is None:
            append(**rows)
        else:
            self._appended = self.deferred.after_verify(append, self._zero_step_batch, **rows)


def _chances_of(last: torch.Tensor, drafts: int) -> torch.Tensor:
    """Return how likely each token is to be drafted, [requests, drafts, vocabulary], in the memory of *last*.

    *last* is the same for blocks of another width. It is zero between rounds: SGLang zeros it after each use, and makes
    a new one if a round finds none of its shape and size, as when it has room for no request.
    """
    vocabulary = last.shape[-1]
    requests = last.untyped_storage().nbytes() // (drafts * vocabulary * last.element_size())
    return last.as_strided((requests, drafts, vocabulary), (drafts * vocabulary, vocabulary, 1))


def reserve(original: Callable[..., None], draft_input: Any, batch: Any) -> None:
    """Reserve KV slots for a round of *batch* with SGLang's *original* and the widest block: no width is chosen yet."""
    with get_spec().override(speculative_num_draft_tokens=max_speculative_num_draft_tokens()):
        original(draft_input, batch)


@contextmanager
def _without_a_pass(draft: Any) -> Iterator[None]:
    """Let *draft*, SGLang's draft runner, return its input as hidden states: a block of one token has no drafts.

    The rest of SGLang's round stays the same.
    """
    draft.forward = lambda batch: ModelRunnerOutput(
        logits_output=LogitsProcessorOutput(next_token_logits=None, hidden_states=batch.input_embeds),
        can_run_graph=False,
    )
    try:
        yield
    finally:
        del draft.forward
