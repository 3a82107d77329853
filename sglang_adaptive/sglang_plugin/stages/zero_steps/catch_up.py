"""One draft extend over the tokens of several rounds, through SGLang's own DRAFT_EXTEND_V2.

After a drafted round SGLang runs the draft over all draft tokens of the verify pass and uses the output at the last
accepted one. A catch-up has the same form: a request with n pending tokens looks like one whose verify pass read all
draft tokens of a runtime state and accepted n. So it uses the backend and CUDA graph of an existing runtime state.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sglang_adaptive.runtime.pending_drafts import CatchUp
from sglang_adaptive.runtime.states import SpecRuntimeState
from sglang_adaptive.sglang_plugin.stages.fast_path.kv_only import at_keys_and_values, swapped


@dataclass(frozen=True, slots=True)
class HeldRound:
    """One zero-step round's input to the draft extend: one row per request, in batch order."""

    hidden_states: Tensor | None
    """[requests, width of the target's features]: a copy, because the next replay of a CUDA graph overwrites them.
    None for a STANDALONE draft, which reads no hidden states."""
    token_ids: Tensor
    """[requests]: the tokens that the target chose, a new tensor in every round."""


def run_catch_up(
    draft: Any, state: SpecRuntimeState, batch: Any, plan: CatchUp, held: Sequence[HeldRound], ahead: int, extend: Any,
    early: bool = False,
) -> tuple[Tensor, Any]:  # fmt: skip
    """Run the draft over the pending tokens of *plan*.

    *ahead* is the number of tokens by which the requests are longer than *batch* says: 1 after a verify pass, 0
    before one. *extend* is SGLang's ``_draft_extend_for_decode``. Returns the extended rows of the batch, on the
    device, and the draft's output at the last token of each, as SGLang's EagleDraftInput. With *early* the pass
    ends once keys and values are written, and that output is empty. Nothing waits for the device. *batch* is not
    changed.
    """
    from sglang.srt.layers.logits_processor import LogitsProcessorOutput
    from sglang.srt.managers.utils import GenerationBatchResult
    from sglang.srt.speculative.eagle_info import EagleDraftInput

    width = state.speculative_num_draft_tokens
    # A zero-step round adds one token to a request, so its first pending token is as far back as it has pending ones.
    back = [ahead - count for count in plan.counts]
    # Where no request joined or left since the last catch-up, rows need no lookup.
    in_order = width == len(held) and plan.is_one_of_each([block.token_ids.shape[0] for block in held])
    parts = [plan.rows, plan.counts, plan.last_places(width), back, () if in_order else plan.padded_sources(width)]
    rows, counts, last, back_on_device, looked_up = on_device(parts, batch.device)
    sources = None if in_order else looked_up
    late = _batch_of(batch, plan, rows)
    late.seq_lens = late.seq_lens + back_on_device
    late.seq_lens_sum = None
    if batch.seq_lens_cpu is not None:
        late.seq_lens_cpu = late.seq_lens_cpu + torch.tensor(back)
        late.seq_lens_sum = int(late.seq_lens_cpu.sum())
    table = batch.req_to_token_pool.req_to_token
    late.out_cache_loc = _slots(table, late.req_pool_indices, late.seq_lens, counts, width)
    accept_lens = counts.to(torch.int32)
    token_ids = _gathered([block.token_ids for block in held], sources).to(torch.int64)
    features = [block.hidden_states for block in held if block.hidden_states is not None]
    hidden_states = _gathered(features, sources) if features else None
    result = GenerationBatchResult(
        logits_output=LogitsProcessorOutput(next_token_logits=None, hidden_states=hidden_states),
        next_token_ids=token_ids,
        accept_lens=accept_lens,
        prepared_draft_extend_inputs=(accept_lens - 1, last, token_ids),
        next_draft_input=EagleDraftInput(),
    )
    with _tier(draft, state), at_keys_and_values(draft) if early else nullcontext():
        extend(draft, late, result)
    return rows, result.next_draft_input


def _gathered(blocks: list[Tensor], sources: Tensor | None) -> Tensor:
    """Return rows *sources* of all blocks; None means the first row of each block, then the second of each, etc."""
    return torch.stack(blocks, dim=1).flatten(0, 1) if sources is None else torch.cat(blocks)[sources]


def has_graph(state: SpecRuntimeState, requests: int) -> bool:
    """Whether the draft extend of *state* has a CUDA graph for *requests*."""
    runner = state.cuda_graph_runner_for_draft_extend
    return runner is not None and requests <= runner.max_bs


def on_device(parts: Sequence[Sequence[int]], device: Any) -> list[Tensor]:
    """Return each of *parts* as int64 on *device*, all sent in one copy that nothing waits for.

    Each starts at a multiple of 16 bytes, like a separate tensor. SGLang copies them into its graphs' buffers with a
    Triton kernel that is recompiled for every combination of aligned and unaligned pointers.
    """
    padded = [[*part, 0] if len(part) % 2 else part for part in parts]
    on_cpu = torch.device(device).type == "cpu"
    # Pinned, so that the copy does not wait for earlier work in the queue.
    whole = torch.tensor([number for part in padded for number in part], dtype=torch.int64, pin_memory=not on_cpu)
    pieces = whole.to(device, non_blocking=True).split([len(part) for part in padded])
    return [piece[: len(part)] for piece, part in zip(pieces, parts, strict=True)]


def _batch_of(batch: Any, plan: CatchUp, rows: Tensor) -> Any:
    """Return a copy of *batch* with only the requests of *plan*, without grammars and log probabilities."""
    late = copy.copy(batch)
    if len(plan.rows) < len(batch.reqs):
        on_host = list(plan.rows)
        late.reqs = [batch.reqs[row] for row in on_host]
        kept = dict.fromkeys(("req_pool_indices", "seq_lens", "orig_seq_lens"), rows)
        for name, own in (kept | dict.fromkeys(("req_pool_indices_cpu", "seq_lens_cpu"), on_host)).items():
            values = getattr(batch, name)
            setattr(late, name, None if values is None else values[own])
        if batch.multimodal_inputs is not None:
            late.multimodal_inputs = [batch.multimodal_inputs[row] for row in on_host]
    late.sampling_info = copy.copy(batch.sampling_info)  # SGLang puts the grammars of the forward pass into it
    late.has_grammar = late.return_logprob = False
    return late


def _slots(table: Tensor, pool_rows: Tensor, starts: Tensor, counts: Tensor, width: int) -> Tensor:
    """Return the KV slots of *counts* positions from *starts* on, padded to *width* with SGLang's padding slot, flat.

    A pass wider than any round reads positions for which the request has no slots.
    """
    places = torch.arange(width, device=starts.device)
    columns = (starts[:, None] + places).clamp_(max=table.shape[1] - 1)
    slots = table[pool_rows[:, None], columns].to(torch.int64)
    return slots.masked_fill_(places >= counts[:, None], 0).flatten()


@contextmanager
def _tier(draft: Any, state: SpecRuntimeState) -> Iterator[None]:
    """Set the fields that the draft extend reads to those of *state*, then restore them.

    ``apply_runtime_state`` would also change the target's fields, which the current round may be using.
    """
    from sglang.srt.runtime_context import get_spec

    runner = draft.draft_runner
    widths = {
        "speculative_num_steps": state.speculative_num_steps,
        "speculative_num_draft_tokens": state.speculative_num_draft_tokens,
    }
    parts = {
        "draft_extend_attn_backend": state.draft_extend_attn_backend,
        "cuda_graph_runner_for_draft_extend": state.cuda_graph_runner_for_draft_extend,
    }
    backend = {"attn_backend": state.draft_extend_attn_backend or runner.attn_backend}
    with swapped((draft, widths | parts), (runner, backend)), get_spec().override(**widths):
        yield
