"""One run of the draft's extend over the tokens of several rounds, through SGLang's own DRAFT_EXTEND_V2.

After a round with drafts SGLang runs the draft over all positions that were verified and uses the output at the last
accepted one. A catch-up has the same form: a request that owes n tokens is a request that verified as many as the tier
is wide and had n of them accepted. So it runs on the backend and the CUDA graph that some tier has anyway.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from sglang_adaptive.runtime.pending_drafts import CatchUp
from sglang_adaptive.runtime.state import SpecRuntimeState
from sglang_adaptive.sglang_plugin.zero_steps.kv_only_backend import KvOnlyBackend, Written

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class HeldRound:
    """What the draft's extend needs of a zero-step round: one row a request, in the order of the batch."""

    hidden_states: Tensor | None
    """[requests, width of the target's features]; a copy, for the next replay of a CUDA graph overwrites them.

    None for a draft that reads none: a model of its own.
    """

    token_ids: Tensor
    """[requests]: the token that the target chose; made anew in every round, so it can be kept as it is."""

    @classmethod
    def of(cls, result: Any) -> HeldRound:
        """Keep the rows of a verified batch, on the stream that verified it."""
        features = result.logits_output.hidden_states
        return cls(None if features is None else features.clone(), result.next_token_ids)


def choose_state(states: Sequence[SpecRuntimeState], tokens: int, requests: int) -> SpecRuntimeState:
    """Return the tier to run on: the narrowest that takes *tokens* a request, with a CUDA graph if one has it.

    *states* ascend by width, and the last is wide enough.
    """
    wide = [state for state in states if state.speculative_num_draft_tokens >= tokens]
    with_graph = (state for state in wide if _has_graph(state, requests))
    return next(with_graph, wide[0])


def run_catch_up(
    draft: Any, state: SpecRuntimeState, batch: Any, plan: CatchUp, held: Sequence[HeldRound], ahead: int, extend: Any,
    kv_only: bool = False,
) -> tuple[Tensor, Any]:  # fmt: skip
    """Extend the draft over what *plan* owes.

    *ahead* is by how many tokens the requests are longer than *batch* says: 1 after a verify pass, 0 before one.
    *extend* is SGLang's ``_draft_extend_for_decode``. Returns the rows of the batch that were extended, on the
    device, and the draft's output at the last token of each, as SGLang's EagleDraftInput; that is empty with
    *kv_only*, which ends the pass once keys and values are written. Nothing waits for the device; *batch* is left
    as it is.
    """
    from sglang.srt.layers.logits_processor import LogitsProcessorOutput
    from sglang.srt.managers.utils import GenerationBatchResult
    from sglang.srt.speculative.eagle_info import EagleDraftInput

    width = state.speculative_num_draft_tokens
    # A zero-step round makes a request one token longer, so the first token owed stands as far back as it owes.
    back = [ahead - count for count in plan.counts]
    # Where nobody came or left since the last one, as in steady zero steps, rows need no looking up.
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
    late.out_cache_loc = _slots(batch.req_to_token_pool.req_to_token, late.req_pool_indices, late.seq_lens, width)
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
    with _tier(draft, state, kv_only), suppress(Written):
        extend(draft, late, result)
    return rows, result.next_draft_input


def _gathered(blocks: list[Tensor], sources: Tensor | None) -> Tensor:
    """Return the rows *sources* of all blocks; None for the first rows of each, then the second ones, and so on."""
    return torch.stack(blocks, dim=1).flatten(0, 1) if sources is None else torch.cat(blocks)[sources]


def _has_graph(state: SpecRuntimeState, requests: int) -> bool:
    runner = state.cuda_graph_runner_for_draft_extend
    return runner is not None and requests <= runner.max_bs


def on_device(parts: Sequence[Sequence[int]], device: Any) -> list[Tensor]:
    """Return each of *parts* as int64 on *device*, all of them sent in one copy that nothing waits for.

    Each begins at a multiple of 16 bytes, as a tensor of its own would. SGLang copies them into its graphs' buffers
    with a Triton kernel, which is compiled anew for every combination of pointers that do and do not.
    """
    padded = [[*part, 0] if len(part) % 2 else part for part in parts]
    on_cpu = torch.device(device).type == "cpu"
    # Pinned, so that the copy need not wait for the work that is queued before it.
    whole = torch.tensor([number for part in padded for number in part], dtype=torch.int64, pin_memory=not on_cpu)
    pieces = whole.to(device, non_blocking=True).split([len(part) for part in padded])
    return [piece[: len(part)] for piece, part in zip(pieces, parts, strict=True)]


def _batch_of(batch: Any, plan: CatchUp, rows: Tensor) -> Any:
    """Return a copy of *batch* with the requests of *plan* alone, without what only their target pass needs."""
    late = copy.copy(batch)
    if len(plan.rows) < len(batch.reqs):
        on_host = list(plan.rows)
        late.reqs = [batch.reqs[row] for row in on_host]
        for name in ("req_pool_indices", "seq_lens", "orig_seq_lens"):
            setattr(late, name, _rows_of(getattr(batch, name), rows))
        for name in ("req_pool_indices_cpu", "seq_lens_cpu"):
            setattr(late, name, _rows_of(getattr(batch, name), on_host))
        if batch.multimodal_inputs is not None:
            late.multimodal_inputs = [batch.multimodal_inputs[row] for row in on_host]
    late.sampling_info = copy.copy(batch.sampling_info)  # SGLang puts the grammars of the forward pass into it
    late.has_grammar = late.return_logprob = False
    return late


def _rows_of(values: Tensor | None, rows: Any) -> Tensor | None:
    return None if values is None else values[rows]


def _slots(table: Tensor, pool_rows: Tensor, starts: Tensor, width: int) -> Tensor:
    """Return the KV slots of *width* positions from *starts* on, flat; SGLang reserves more than that a request."""
    columns = starts[:, None] + torch.arange(width, device=starts.device)
    return table[pool_rows[:, None], columns.clamp_(max=table.shape[1] - 1)].flatten().to(torch.int64)


@contextmanager
def _tier(draft: Any, state: SpecRuntimeState, kv_only: bool) -> Iterator[None]:
    """Give the draft worker what its extend reads of *state*, and then back what it had.

    ``apply_runtime_state`` would swap the target's side as well, which the round may be in the middle of.
    """
    from sglang.srt.runtime_context import get_spec

    fields = {
        "speculative_num_steps": state.speculative_num_steps,
        "speculative_num_draft_tokens": state.speculative_num_draft_tokens,
        "draft_extend_attn_backend": state.draft_extend_attn_backend,
        "cuda_graph_runner_for_draft_extend": state.cuda_graph_runner_for_draft_extend,
    }
    before = {name: getattr(draft, name) for name in fields}
    backend = draft.draft_runner.attn_backend
    own = state.draft_extend_attn_backend or backend
    if kv_only:
        own = KvOnlyBackend(own, draft.draft_runner.token_to_kv_pool)
        fields |= {"draft_extend_attn_backend": own, "cuda_graph_runner_for_draft_extend": None}
    try:
        for name, value in fields.items():
            setattr(draft, name, value)
        draft.draft_runner.attn_backend = own
        with get_spec().override(
            speculative_num_steps=state.speculative_num_steps,
            speculative_num_draft_tokens=state.speculative_num_draft_tokens,
        ):
            yield
    finally:
        for name, value in before.items():
            setattr(draft, name, value)
        draft.draft_runner.attn_backend = backend
