"""Runs a round's draft and draft extend from their CUDA graphs, without SGLang's host work around them.

As for the verify pass (`short_verify.py`), SGLang 0.5.23 makes a ForwardBatch for each, and creates eight to twelve
tensors to copy into the graph's buffers. Here one kernel fills in all inputs of a graph (`graph_inputs.py`). The drafts
are the same without it, and the target verifies them in either case.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from sglang_adaptive.sglang_plugin.guard import Guard
from sglang_adaptive.sglang_plugin.setup import Setup
from sglang_adaptive.sglang_plugin.stage import Rest, Stage
from sglang_adaptive.sglang_plugin.stages.fast_path import graph_inputs, plans


@dataclass(slots=True)
class _Plan:
    """What one graph needs for one number of requests."""

    requests: int
    padded: int
    key: Any
    ones: torch.Tensor
    """[requests, 1] float32: the chances that SGLang reports for drafts."""
    addresses: torch.Tensor | None = None
    """Of a draft, the addresses of its passes' lengths; see `graph_inputs.fill_draft`."""

    @classmethod
    def of(cls, runner: Any, requests: int) -> _Plan:
        padded = runner._pad_to_bucket(requests, runner.capture_bs)
        ones = torch.ones((requests, 1), dtype=torch.float32, device=runner.device)
        return cls(requests, padded, runner._make_graph_key(padded), ones)


class ShortDraft(Stage):
    """Runs drafts and draft extends of one worker's rounds that need only graphs."""

    def __init__(self) -> None:
        self.guard = Guard("short-draft")
        self._plans: plans.Plans[_Plan] = plans.Plans("short-draft")
        self.drafts = self.extends = 0

    # -- the draft ------------------------------------------------------------------------------------------------

    def draft(self, rest: Rest, drafter: Any, batch: Any, **kwargs: Any) -> Any:
        """Draft, and return the verify input."""
        found = None
        if batch.seq_lens.is_cuda and not kwargs:
            found = self.guard.attempt(self._drafted, drafter, batch)
        return rest(drafter, batch, **kwargs) if found is None else found

    def _drafted(self, drafter: Any, batch: Any) -> Any:
        given, steps = batch.spec_info, drafter.speculative_num_steps
        if steps + 1 != drafter.speculative_num_draft_tokens or not self._may_link(drafter, batch):
            return None
        if given.hidden_states is None:
            return None
        drafts = self._first(drafter, given) if steps == 1 else self._replayed_drafts(drafter, batch, steps)
        if drafts is None:
            return None
        self.drafts += 1
        return self._linked(drafter, batch, drafts)

    def linked(self, drafter: Any, batch: Any, drafts: torch.Tensor) -> Any:
        """Return the verify input of chains of *drafts* [requests, steps]; None where SGLang has to make it."""
        return self.guard.attempt(self._linked_if_it_may, drafter, batch, drafts)

    def _linked_if_it_may(self, drafter: Any, batch: Any, drafts: torch.Tensor) -> Any:
        return self._linked(drafter, batch, drafts) if self._may_link(drafter, batch) else None

    def _linked(self, drafter: Any, batch: Any, drafts: torch.Tensor) -> Any:
        from sglang.srt.speculative.eagle_info import EagleVerifyInput

        given, steps, table = batch.spec_info, drafts.shape[1], batch.req_to_token_pool.req_to_token
        target = drafter.target_worker.model_runner.attn_backend
        tokens, positions, links, slots = graph_inputs.linked(
            given.bonus_tokens, drafts, batch.req_pool_indices, batch.seq_lens, table
        )
        return EagleVerifyInput(
            draft_token=tokens, positions=positions, retrieve_index=links[0], retrieve_next_token=links[1],
            retrieve_next_sibling=links[2], retrieve_cum_len=None, spec_steps=steps, topk=1, draft_token_num=steps + 1,
            custom_mask=target.verify_mask.buffer,  # never read
            capture_hidden_mode=None, seq_lens_sum=None, seq_lens_cpu=None, prepared_out_cache_loc=slots,
        )  # fmt: skip

    def _may_link(self, drafter: Any, batch: Any) -> bool:
        """Whether the verify pass accepts chains from `graph_inputs.linked`."""
        if not _is_plain(batch):
            return False
        target = drafter.target_worker.model_runner.attn_backend
        may = self._plans.may(target, partial(_setup, drafter))
        return may and batch.seq_lens.shape[0] <= target.verify_mask.max_bs

    def _first(self, drafter: Any, given: Any) -> torch.Tensor:
        """Return the drafts of one step, [requests, 1], which the last draft extend made."""
        hot: torch.Tensor | None = drafter.hot_token_id
        chosen: torch.Tensor = given.topk_index
        return chosen if hot is None else hot[chosen]

    def _replayed_drafts(self, drafter: Any, batch: Any, steps: int) -> torch.Tensor | None:
        """Replay the draft's graph and return its drafts, [requests, steps]; None where SGLang has to prepare it."""
        given, runner = batch.spec_info, drafter.cuda_graph_runner
        setup = partial(_setup, drafter, runner, "draft_attn_backend")
        plan = self._plans.of(runner, batch.seq_lens.shape[0], setup, _draft_plan)
        if plan is None or runner.speculative_num_steps != steps:
            return None
        requests, first = plan.requests, runner.draft_attn_backend.attn_backends[0]
        graph_inputs.fill_draft(
            runner.buffers, plan.addresses, first.decode_cuda_graph_metadata[plan.padded].page_table, given.topk_index,
            given.topk_p, batch.req_pool_indices, batch.seq_lens, batch.req_to_token_pool.req_to_token,
            padded=plan.padded, steps=steps, filler=runner.seq_len_fill_value, page=first.page_size,
            most_pages=first.max_num_pages,
        )  # fmt: skip
        runner.buffers.hidden_states[:requests].copy_(given.hidden_states)
        runner.raw_bs, runner.bs = requests, plan.padded
        drafts: torch.Tensor = runner.backend.replay(plan.key, None)[2][:requests]
        return drafts

    def shortened(self) -> dict[str, int]:
        """Return the number of replayed drafts and draft extends."""
        return {"drafts": self.drafts, "extends": self.extends}

    # -- the draft extend -----------------------------------------------------------------------------------------

    def draft_extend(self, rest: Rest, drafter: Any, batch: Any, result: Any, **kwargs: Any) -> None:
        """Run the draft over the accepted tokens, and complete *result*."""
        if not (batch.seq_lens.is_cuda and self.guard.attempt(self._extended, drafter, batch, result)):
            rest(drafter, batch, result, **kwargs)

    def _extended(self, drafter: Any, batch: Any, result: Any) -> bool:
        runner, width = drafter.cuda_graph_runner_for_draft_extend, drafter.speculative_num_draft_tokens
        given = result.prepared_draft_extend_inputs
        if not _is_plain(batch) or given is None:
            return False
        setup = partial(_setup, drafter, runner, "draft_extend_attn_backend")
        plan = self._plans.of(runner, batch.seq_lens.shape[0], setup, _Plan.of)
        hidden = result.logits_output.hidden_states
        if plan is None or hidden is None or width != runner.captured_req_width:
            return False
        buffers, requests, (correct, select, ids) = runner.buffers, plan.requests, given
        if hidden.shape != (requests * width, buffers.hidden_states.shape[1]):
            return False
        graph_inputs.fill_extend(
            buffers, ids, correct, result.accept_lens, select, batch.req_pool_indices, batch.seq_lens,
            batch.req_to_token_pool.req_to_token, padded=plan.padded, width=width, filler=runner.seq_len_fill_value,
        )  # fmt: skip
        buffers.hidden_states[: requests * width].copy_(hidden)
        self.extends += 1
        output = self._replayed(runner, plan)
        made = result.next_draft_input
        made.topk_index = torch.argmax(output.next_token_logits[:requests], dim=-1, keepdim=True)
        made.topk_p = plan.ones
        made.hidden_states = output.hidden_states[:requests].clone()  # the next replay overwrites them
        made.cuda_graph_compatible = True
        return True

    def _replayed(self, runner: Any, plan: _Plan) -> Any:
        from sglang.srt.layers.attention.base_attn_backend import SharedReadEnds

        backend = runner.draft_extend_attn_backend
        # The graph fills in all metadata itself; a setup with other graphs is ruled out.
        backend.forward_metadata = backend.draft_extend_metadata[plan.padded]
        backend.forward_metadata_spec_decode_expand = None
        ends, runner.model_runner.shared_read_done_event = backend.shared_read_ends(runner.forward_mode), None
        if ends is SharedReadEnds.PRE_REPLAY:
            runner._publish_read_done(in_graph=False)
        runner.raw_bs, runner.bs = plan.requests, plan.padded
        output = runner.backend.replay(plan.key, None)
        if ends in (SharedReadEnds.IN_REPLAY, SharedReadEnds.POST_REPLAY):
            runner._publish_read_done(in_graph=False)
        return output


def _is_plain(batch: Any) -> bool:
    absent = (batch.seq_lens_cpu, batch.mamba_track_indices, batch.input_embeds)
    return not batch.forward_mode.is_idle() and all(part is None for part in absent)


def _draft_plan(runner: Any, requests: int) -> _Plan:
    plan = _Plan.of(runner, requests)
    passes = [one.decode_cuda_graph_metadata[plan.padded] for one in runner.draft_attn_backend.attn_backends]
    parts = [one.cache_seqlens_int32 for one in passes] + [one.cu_seqlens_k for one in passes]
    assert all(part.is_contiguous() and part.dtype == torch.int32 for part in parts)
    plan.addresses = torch.tensor([part.data_ptr() for part in parts], dtype=torch.int64, device=runner.device)
    return plan


def _setup(drafter: Any, graphs: Any = None, backend: str = "") -> Setup:
    """Return the setup of chains for a verify pass, or of *graphs* with the attention backend of this name."""
    target = drafter.target_worker.model_runner.attn_backend
    attention = (target,) if graphs is None else (target, getattr(graphs, backend, None))
    return Setup(draft=drafter, model=drafter.draft_runner, attention=attention, graphs=graphs)
