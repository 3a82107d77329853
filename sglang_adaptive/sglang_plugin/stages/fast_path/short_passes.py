"""Runs a round's draft, verify pass and draft extend from their CUDA graphs, without SGLang's host work around them.

For a verify pass SGLang 0.5.23 makes a ForwardBatch of fifty fields, queries some thirty configurations, copies the
graph's inputs, makes the attention metadata, enters seven contexts, and copies part of the inputs again. On fa3 one
kernel that fills in the inputs (`graph_inputs.py`) and the replay are enough. With a small model on a fast GPU, the
round waits for that host work.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

import torch

from sglang_adaptive.sglang_plugin import features
from sglang_adaptive.sglang_plugin.guard import Guard
from sglang_adaptive.sglang_plugin.setup import VERIFY_INPUTS, Setup
from sglang_adaptive.sglang_plugin.stage import Rest, Stage
from sglang_adaptive.sglang_plugin.stages.fast_path import graph_inputs, greedy

Plan = TypeVar("Plan")


class Plans(Generic[Plan]):
    """What graphs need for each number of requests, looked up once: the answers never change while a server runs.

    A plan must not hold its graph's runner, which has a shorter life.
    """

    def __init__(self, name: str) -> None:
        """*name* is the feature's."""
        self._name = name
        self._found: WeakKeyDictionary[Any, dict[int, Plan] | None] = WeakKeyDictionary()
        """By runner or attention backend, and number of requests; None for one that SGLang prepares."""

    def may(self, owner: Any, setup: Callable[[], Setup]) -> bool:
        """Whether *owner*'s passes, with *setup*, do not need SGLang to prepare them."""
        return self._of_owner(owner, setup) is not None

    def of(
        self, runner: Any, requests: int, setup: Callable[[], Setup], made: Callable[[Any, int], Plan]
    ) -> Plan | None:
        """Return *runner*'s plan for *requests*, *made* on first use; None where SGLang has to prepare the pass."""
        plans = self._of_owner(runner, setup) if runner else None
        if plans is None or requests > runner.max_bs:
            return None
        plan = plans.get(requests)
        if plan is None:
            plan = plans[requests] = made(runner, requests)
        return plan

    def _of_owner(self, owner: Any, setup: Callable[[], Setup]) -> dict[int, Plan] | None:
        try:
            return self._found[owner]
        except KeyError:
            found = self._found[owner] = {} if features.may(self._name, setup()) else None
            return found


@dataclass(slots=True)
class _DraftPlan:
    """What one graph needs for one number of requests."""

    requests: int
    padded: int
    key: Any
    ones: torch.Tensor
    """[requests, 1] float32: the chances that SGLang reports for drafts."""
    addresses: torch.Tensor | None = None
    """Of a draft, the addresses of its passes' lengths; see `graph_inputs.fill_draft`."""

    @classmethod
    def of(cls, runner: Any, requests: int) -> _DraftPlan:
        padded = runner._pad_to_bucket(requests, runner.capture_bs)
        ones = torch.ones((requests, 1), dtype=torch.float32, device=runner.device)
        return cls(requests, padded, runner._make_graph_key(padded), ones)


class ShortDraft(Stage):
    """Runs drafts and draft extends of one worker's rounds that need only graphs."""

    def __init__(self) -> None:
        self.guard = Guard("short-draft")
        self._plans: Plans[_DraftPlan] = Plans("short-draft")
        self.drafts = self.extends = 0

    # -- the draft ------------------------------------------------------------------------------------------------

    def draft(self, rest: Rest, drafter: Any, batch: Any, **kwargs: Any) -> Any:
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
        if steps == 1:  # the last draft extend made them
            drafts = given.topk_index if drafter.hot_token_id is None else drafter.hot_token_id[given.topk_index]
        else:
            drafts = self._replayed_drafts(drafter, batch, steps)
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
        may = self._plans.may(target, partial(_draft_setup, drafter))
        return may and batch.seq_lens.shape[0] <= target.verify_mask.max_bs

    def _replayed_drafts(self, drafter: Any, batch: Any, steps: int) -> torch.Tensor | None:
        """Replay the draft's graph and return its drafts, [requests, steps]; None where SGLang has to prepare it."""
        given, runner = batch.spec_info, drafter.cuda_graph_runner
        setup = partial(_draft_setup, drafter, runner, "draft_attn_backend")
        plan = self._plans.of(runner, batch.seq_lens.shape[0], setup, _plan_of_draft)
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
        return {"drafts": self.drafts, "extends": self.extends}

    # -- the draft extend -----------------------------------------------------------------------------------------

    def draft_extend(self, rest: Rest, drafter: Any, batch: Any, result: Any, **kwargs: Any) -> None:
        if not (batch.seq_lens.is_cuda and self.guard.attempt(self._extended, drafter, batch, result)):
            rest(drafter, batch, result, **kwargs)

    def _extended(self, drafter: Any, batch: Any, result: Any) -> bool:
        runner, width = drafter.cuda_graph_runner_for_draft_extend, drafter.speculative_num_draft_tokens
        given = result.prepared_draft_extend_inputs
        if not _is_plain(batch) or given is None:
            return False
        setup = partial(_draft_setup, drafter, runner, "draft_extend_attn_backend")
        plan = self._plans.of(runner, batch.seq_lens.shape[0], setup, _DraftPlan.of)
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

    def _replayed(self, runner: Any, plan: _DraftPlan) -> Any:
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


def _plan_of_draft(runner: Any, requests: int) -> _DraftPlan:
    plan = _DraftPlan.of(runner, requests)
    passes = [one.decode_cuda_graph_metadata[plan.padded] for one in runner.draft_attn_backend.attn_backends]
    parts = [one.cache_seqlens_int32 for one in passes] + [one.cu_seqlens_k for one in passes]
    assert all(part.is_contiguous() and part.dtype == torch.int32 for part in parts)
    plan.addresses = torch.tensor([part.data_ptr() for part in parts], dtype=torch.int64, device=runner.device)
    return plan


def _draft_setup(drafter: Any, graphs: Any = None, backend: str = "") -> Setup:
    """Return the setup of chains for a verify pass, or of *graphs* with the attention backend of this name."""
    target = drafter.target_worker.model_runner.attn_backend
    attention = (target,) if graphs is None else (target, getattr(graphs, backend, None))
    return Setup(draft=drafter, model=drafter.draft_runner, attention=attention, graphs=graphs)


class ShortVerify(Stage):
    """Verifies one worker's rounds that need only a graph."""

    def __init__(self) -> None:
        self.guard = Guard("short-verify")
        self.greedy_commit = Guard("greedy-commit")
        self.rounds = self.commits = 0
        self._plans: Plans[_VerifyPlan] = Plans("short-verify")

    def verify(self, rest: Rest, worker: Any, batch: Any, **kwargs: Any) -> Any:
        found = None
        if batch.seq_lens.is_cuda and kwargs.get("pp_proxy_tensors") is None:
            found = self.guard.attempt(self._verified, worker, batch)
        return rest(worker, batch, **kwargs) if found is None else found

    def draft_extend(self, rest: Rest, drafter: Any, batch: Any, result: Any, **kwargs: Any) -> None:
        """Look up the KV slots for SGLang's draft extend if a short verify has left them out."""
        if batch.seq_lens.is_cuda and batch.out_cache_loc is None:
            from sglang.kernels.ops.speculative.cache_locs import assign_extend_cache_locs_uniform_func

            batch.out_cache_loc = assign_extend_cache_locs_uniform_func(
                req_pool_indices=batch.req_pool_indices,
                req_to_token=batch.req_to_token_pool.req_to_token,
                start_offset=batch.seq_lens,
                batch_size=batch.seq_lens.shape[0],
                draft_token_num=drafter.speculative_num_draft_tokens,
                device=batch.device,
            )
        rest(drafter, batch, result, **kwargs)

    def shortened(self) -> dict[str, int]:
        return {"verifies": self.rounds, "accepts": self.commits}

    def _verified(self, worker: Any, batch: Any) -> Any:
        verify_input, runner = batch.spec_info, worker.target_worker.model_runner.decode_cuda_graph_runner
        if not _verifies_only_tokens(batch, verify_input):
            return None
        plan = self._plans.of(runner, batch.seq_lens.shape[0], partial(_verify_setup, worker, runner), _VerifyPlan.of)
        if plan is None or verify_input.draft_token_num != plan.width:
            return None
        # What SGLang leaves for the draft extend; at zero steps its slots are looked up when it runs.
        batch.input_ids, batch.out_cache_loc = verify_input.draft_token, verify_input.prepared_out_cache_loc
        batch.forward_mode = plan.mode
        self.rounds += 1
        return self._result(batch, verify_input, plan.replayed(runner, batch), plan)

    def _result(self, batch: Any, verify_input: Any, output: Any, plan: _VerifyPlan) -> Any:
        from sglang.srt.managers.utils import GenerationBatchResult
        from sglang.srt.speculative import eagle_worker_common as common

        committed = self.greedy_commit.attempt(greedy.committed, verify_input, batch, output.next_token_logits)
        if committed is None:
            predict, lens, index = common.eagle_sample(verify_input, batch, output, None, watermark_state=None)
            lengths, bonus, _, extend = common.prepare_verify_commit_outputs(
                predict, index, lens, batch.seq_lens, num_draft_tokens=plan.width
            )
        else:
            predict, lens, index, lengths, bonus, extend = committed
            self.commits += 1
        return GenerationBatchResult(
            logits_output=output,
            next_token_ids=predict,
            can_run_cuda_graph=True,
            speculative_num_draft_tokens=plan.width,
            next_draft_input=common.EagleDraftInput(bonus_tokens=bonus),
            accept_lens=lens,
            accept_index=index,
            new_seq_lens=lengths,
            # SGLang keeps this and the batch's earlier fields until the round has ended.
            extra_keep_alive_refs=[verify_input],
            prepared_draft_extend_inputs=extend,
        )


@dataclass(slots=True)
class _VerifyPlan:
    """What one graph needs for one number of requests."""

    requests: int
    padded: int
    width: int
    """Tokens per request."""
    more: int
    """Tokens that fa3 reads of a request beyond its length."""
    metadata: Any
    mode: Any
    key: Any
    ends: Any
    """When the pass has read what the scheduler writes to, as SGLang's SharedReadEnds."""

    @classmethod
    def of(cls, runner: Any, requests: int) -> _VerifyPlan:
        from sglang.srt.model_executor.forward_batch_info import ForwardMode
        from sglang.srt.speculative.eagle_info import EagleDraftInput

        padded, backend = runner._pad_to_bucket(requests, runner.capture_bs), runner.attn_backend
        mode, metadata = ForwardMode.TARGET_VERIFY, backend.target_verify_metadata[padded]
        inputs = [getattr(runner.buffers, name) for name in VERIFY_INPUTS]
        parts = (*inputs, metadata.cache_seqlens_int32, metadata.cu_seqlens_k)
        assert all(part.is_contiguous() for part in parts) and metadata.page_table.stride(1) == 1
        more = backend._spec_read_seq_len_delta(mode, EagleDraftInput())
        key, ends = runner._make_graph_key(padded), runner._resolve_shared_read_ends(backend, mode)
        return cls(requests, padded, runner.captured_req_width, more, metadata, mode, key, ends)

    def replayed(self, runner: Any, batch: Any) -> Any:
        """Fill in the graph's inputs, replay it, and return its output as SGLang's LogitsProcessorOutput."""
        from sglang.srt.layers.attention.base_attn_backend import SharedReadEnds
        from sglang.srt.layers.logits_processor import LogitsProcessorOutput

        backend, tokens = runner.attn_backend, self.requests * self.width
        graph_inputs.fill_verify(
            runner.buffers, self.metadata, batch.input_ids, batch.req_pool_indices, batch.seq_lens,
            backend.req_to_token, padded=self.padded, width=self.width, more=self.more,
            filler=runner.seq_len_fill_value, page=backend.page_size, most_pages=backend.max_num_pages,
        )  # fmt: skip
        backend.forward_metadata, backend.forward_metadata_spec_decode_expand = self.metadata, None
        runner.raw_bs, runner.raw_num_token, runner.bs = self.requests, tokens, self.padded
        runner._replay_graph_key = self.key
        runner.model_runner.forward_pass_id += 1
        if self.ends is SharedReadEnds.PRE_REPLAY:
            runner._publish_read_done(in_graph=False)
        output = runner.backend.replay(self.key, None)
        if self.ends is SharedReadEnds.IN_REPLAY:
            runner._publish_read_done(in_graph=True)
        elif self.ends is SharedReadEnds.POST_REPLAY:
            runner._publish_read_done(in_graph=False)
        hidden, last = output.hidden_states, output.last_hidden_states
        return LogitsProcessorOutput(
            next_token_logits=output.next_token_logits[:tokens],
            hidden_states=None if hidden is None else hidden[:tokens],
            last_hidden_states=None if last is None else last[:tokens],
        )


def _verifies_only_tokens(batch: Any, verify_input: Any) -> bool:
    """Whether the verify pass takes only tokens and lengths, and only tokens come out."""
    asked = batch.has_grammar or batch.return_logprob or batch.return_hidden_states
    others = batch.replace_embeds is not None or verify_input.prepared_mrope_positions is not None
    return not (asked or others) and _is_plain(batch)


def _verify_setup(worker: Any, runner: Any) -> Setup:
    model, backend = (getattr(runner, name, None) for name in ("model_runner", "attn_backend"))
    return Setup(worker, model=model, attention=(backend,), graphs=runner)
