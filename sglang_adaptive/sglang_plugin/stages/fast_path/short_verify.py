"""Runs a round's verify pass from its CUDA graph, without SGLang's host work around it.

For a verify pass SGLang 0.5.23 makes a ForwardBatch of fifty fields, queries some thirty configurations, copies the
graph's inputs, makes the attention metadata, enters seven contexts, and copies part of the inputs again. Where a graph
is replayed on fa3, one kernel that fills in the graph's inputs (`graph_inputs.py`) and the replay are enough. With a
small model on a fast GPU, the round waits for that host work. What a graph needs is looked up once per number of
requests.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from sglang_adaptive.sglang_plugin.guard import Guard
from sglang_adaptive.sglang_plugin.setup import VERIFY_INPUTS, Setup
from sglang_adaptive.sglang_plugin.stage import Rest, Stage
from sglang_adaptive.sglang_plugin.stages.capacity import slots_of_a_round
from sglang_adaptive.sglang_plugin.stages.fast_path import graph_inputs, plans
from sglang_adaptive.sglang_plugin.stages.fast_path.greedy_commit import GreedyCommit


class ShortVerify(Stage):
    """Verifies one worker's rounds that need only a graph."""

    def __init__(self) -> None:
        self.guard = Guard("short-verify")
        self.commit = GreedyCommit()
        self.rounds = 0
        self._plans: plans.Plans[_Plan] = plans.Plans("short-verify")

    def verify(self, rest: Rest, worker: Any, batch: Any, **kwargs: Any) -> Any:
        """Verify the drafts of a round."""
        found = None
        if batch.seq_lens.is_cuda and kwargs.get("pp_proxy_tensors") is None:
            found = self.guard.attempt(self._verified, worker, batch)
        return rest(worker, batch, **kwargs) if found is None else found

    def draft_extend(self, rest: Rest, drafter: Any, batch: Any, result: Any, **kwargs: Any) -> None:
        """Look up the KV slots for SGLang's draft extend if a short verify has left them out."""
        if batch.seq_lens.is_cuda and batch.out_cache_loc is None:
            batch.out_cache_loc = slots_of_a_round(batch, drafter.speculative_num_draft_tokens)
        rest(drafter, batch, result, **kwargs)

    def shortened(self) -> dict[str, int]:
        """Return the number of replayed verify passes, and of those whose drafts two kernels accepted."""
        return {"verifies": self.rounds, "accepts": self.commit.rounds}

    def _verified(self, worker: Any, batch: Any) -> Any:
        verify_input, runner = batch.spec_info, worker.target_worker.model_runner.decode_cuda_graph_runner
        if not _is_plain(batch, verify_input):
            return None
        plan = self._plans.of(runner, batch.seq_lens.shape[0], partial(_setup, worker, runner), _Plan.of)
        if plan is None or verify_input.draft_token_num != plan.width:
            return None
        # What SGLang leaves for the draft extend; at zero steps its slots are looked up when it runs.
        batch.input_ids, batch.out_cache_loc = verify_input.draft_token, verify_input.prepared_out_cache_loc
        batch.forward_mode = plan.mode
        self.rounds += 1
        return self._result(batch, verify_input, plan.replayed(runner, batch), plan)

    def _result(self, batch: Any, verify_input: Any, output: Any, plan: _Plan) -> Any:
        from sglang.srt.managers.utils import GenerationBatchResult
        from sglang.srt.speculative import eagle_worker_common as common

        committed = self.commit.of(verify_input, batch, output.next_token_logits)
        if committed is None:
            predict, lens, index = common.eagle_sample(verify_input, batch, output, None, watermark_state=None)
            lengths, bonus, _, extend = common.prepare_verify_commit_outputs(
                predict, index, lens, batch.seq_lens, num_draft_tokens=plan.width
            )
        else:
            predict, lens, index, lengths, bonus, extend = committed
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
class _Plan:
    """What one graph needs for one number of requests."""

    requests: int
    padded: int
    width: int
    """Tokens per request."""
    more: int
    """Tokens that fa3 reads of a request beyond its length."""
    filler: int
    """The length of graph rows without a request."""
    metadata: Any
    mode: Any
    key: Any
    ends: Any
    """When the pass has read what the scheduler writes to, as SGLang's SharedReadEnds."""

    @classmethod
    def of(cls, runner: Any, requests: int) -> _Plan:
        from sglang.srt.model_executor.forward_batch_info import ForwardMode
        from sglang.srt.speculative.eagle_info import EagleDraftInput

        padded, backend = runner._pad_to_bucket(requests, runner.capture_bs), runner.attn_backend
        mode, metadata = ForwardMode.TARGET_VERIFY, backend.target_verify_metadata[padded]
        inputs = [getattr(runner.buffers, name) for name in VERIFY_INPUTS]
        parts = (*inputs, metadata.cache_seqlens_int32, metadata.cu_seqlens_k)
        assert all(part.is_contiguous() for part in parts) and metadata.page_table.stride(1) == 1
        more = backend._spec_read_seq_len_delta(mode, EagleDraftInput())
        key, ends = runner._make_graph_key(padded), runner._resolve_shared_read_ends(backend, mode)
        return cls(
            requests, padded, runner.captured_req_width, more, runner.seq_len_fill_value, metadata, mode, key, ends
        )

    def replayed(self, runner: Any, batch: Any) -> Any:
        """Fill in the graph's inputs, replay it, and return its output as SGLang's LogitsProcessorOutput."""
        from sglang.srt.layers.attention.base_attn_backend import SharedReadEnds
        from sglang.srt.layers.logits_processor import LogitsProcessorOutput

        backend, tokens = runner.attn_backend, self.requests * self.width
        graph_inputs.fill_verify(
            runner.buffers, self.metadata, batch.input_ids, batch.req_pool_indices, batch.seq_lens,
            backend.req_to_token, padded=self.padded, width=self.width, more=self.more, filler=self.filler,
            page=backend.page_size, most_pages=backend.max_num_pages,
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


def _is_plain(batch: Any, verify_input: Any) -> bool:
    """Whether the pass takes only tokens and lengths, and only tokens come out."""
    absent = (
        batch.seq_lens_cpu, batch.mamba_track_indices, batch.replace_embeds, batch.input_embeds,
        verify_input.prepared_mrope_positions,
    )  # fmt: skip
    asked = batch.has_grammar or batch.return_logprob or batch.return_hidden_states
    return not asked and not batch.forward_mode.is_idle() and all(part is None for part in absent)


def _setup(worker: Any, runner: Any) -> Setup:
    model, backend = (getattr(runner, name, None) for name in ("model_runner", "attn_backend"))
    return Setup(worker, model=model, attention=(backend,), graphs=runner)
