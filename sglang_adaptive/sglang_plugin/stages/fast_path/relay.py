"""What lies between rounds: the state that a round starts from, and the fields of a batch that it may change.

Between rounds SGLang 0.5.23 keeps a request's last token, its first draft with its chance, and its hidden state in rows
of the pool. It reads them with one kernel, whose launch inspects each buffer again, and writes each with a copy and an
indexed store. Here one kernel each way does it.

It also reads each of a batch's hundred fields one by one, twice, and sets each of them after the round. Here they are
saved and restored through the batch's ``__dict__``; docs/architecture.md has the times.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from operator import itemgetter
from typing import Any

import torch
import triton
import triton.language as tl

from sglang_adaptive.sglang_plugin.guard import Guard
from sglang_adaptive.sglang_plugin.notes import NOTE
from sglang_adaptive.sglang_plugin.stage import Rest, Stage
from sglang_adaptive.sglang_plugin.stages.fast_path.launches import launched

BLOCK = 1024


@launched
def _copy(  # type: ignore[no-untyped-def, unused-ignore]
    indices, tokens, chosen, chances, hidden, to_tokens, to_chosen, to_chances, to_hidden, width,
    WRITES: tl.constexpr, DRAFT: tl.constexpr, HIDDEN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Copy each request's state from its row of the pool or, if the kernel WRITES, into it."""
    request, part = tl.program_id(0), tl.program_id(1)
    row = tl.load(indices + request).to(tl.int64)
    source = request if WRITES else row
    target = row if WRITES else request
    if part == 0:
        tl.store(to_tokens + target, tl.load(tokens + source).to(tl.int64))
        if DRAFT:
            tl.store(to_chosen + target, tl.load(chosen + source))
            tl.store(to_chances + target, tl.load(chances + source))
    if HIDDEN:
        column = part * BLOCK + tl.arange(0, BLOCK)
        inside = column < width
        read = tl.load(hidden + source * width + column, mask=inside)
        tl.store(to_hidden + target * width + column, read, mask=inside)


class Relay(Stage):
    """Passes state between one scheduler's rounds with chains of drafts."""

    def __init__(self) -> None:
        self.guard = Guard("relay")

    def read_relay(self, rest: Rest, indices: Any, chances: Any, chosen: Any, tokens: Any, hidden: Any) -> Any:
        """Return rows *indices* of *chances* and *chosen* [pool, 1], *tokens* [pool], and *hidden*, or None for it."""
        given, found = (indices, chances, chosen, tokens, hidden), None
        if indices.is_cuda and indices.shape[0]:
            found = self.guard.attempt(_rows, *given)
        return rest(*given) if found is None else found

    def write_relay(self, rest: Rest, future_map: Any, indices: Any, payload: Any) -> None:
        """Write a round's *payload* into rows *indices* of SGLang's *future_map*."""
        if not (indices.is_cuda and indices.shape[0] and self.guard.attempt(_put, future_map, indices, payload)):
            rest(future_map, indices, payload)


def _rows(indices: Any, chances: Any, chosen: Any, tokens: Any, hidden: Any) -> Any:
    if chosen.dim() != 2 or chosen.shape[1] != 1 or not indices.is_contiguous():
        return None
    requests, width = indices.shape[0], 1 if hidden is None else hidden.shape[1]
    to_chances, to_chosen = chances.new_empty((requests, 1)), chosen.new_empty((requests, 1))
    to_tokens, to_hidden = tokens.new_empty(requests), None if hidden is None else hidden.new_empty((requests, width))
    kind = (False, indices.dtype, None if hidden is None else hidden.dtype)
    _copy(
        kind, (requests, triton.cdiv(width, BLOCK)), indices, tokens, chosen, chances, hidden, to_tokens, to_chosen,
        to_chances, to_hidden, width, False, True, hidden is not None, BLOCK,
    )  # fmt: skip
    return to_chances, to_chosen, to_tokens, to_hidden


def _put(future_map: Any, indices: Any, payload: Any) -> bool:
    """Write what SGLang would write; False where SGLang has to: for the first of a kind, and for other drafts."""
    tokens, chosen, chances, hidden = payload.bonus_tokens, payload.topk_index, payload.topk_p, payload.hidden_states
    other = (payload.draft_probs, payload.dsa_topk_indices, payload.accept_tokens, getattr(future_map, "_relay", None))
    if any(part is not None for part in other) or not future_map.need_topk:
        return False
    parts = [tokens, indices] if chosen is None else [tokens, indices, chosen, chances]
    if hidden is not None:
        if not future_map.need_hidden_states or hidden.dtype != future_map.hidden_states_buf.dtype:
            return False
        parts.append(hidden)
    if chosen is not None and (chosen.shape[1] != 1 or chosen.dtype != torch.int64 or chances.dtype != torch.float32):
        return False
    if not all(part.is_contiguous() for part in parts):
        return False
    width = 1 if hidden is None else hidden.shape[1]
    kind = (True, indices.dtype, tokens.dtype, chosen is None, None if hidden is None else hidden.dtype)
    _copy(
        kind, (indices.shape[0], triton.cdiv(width, BLOCK)), indices, tokens, chosen, chances, hidden,
        future_map.output_tokens_buf, future_map.topk_index_buf, future_map.topk_p_buf,
        None if hidden is None else future_map.hidden_states_buf, width, True, chosen is not None, hidden is not None,
        BLOCK,
    )  # fmt: skip
    return True


class Isolation(Stage):
    """Saves and restores the batches of one scheduler."""

    def __init__(self) -> None:
        self.guard = Guard("isolation")
        self._fields: tuple[str, ...] = ()
        self._values: Callable[[Any], tuple[Any, ...]] | None = None
        """Returns the values of these fields."""

    def isolate(self, rest: Rest, scheduler: Any, batch: Any, *, overlap: bool) -> Any:
        """Return a context manager for a round of *batch*."""
        kept = self.guard.attempt(self._kept, batch)
        if kept is None:
            return rest(scheduler, batch, overlap=overlap)
        return _Isolated(scheduler, batch, overlap, zip(self._fields, kept, strict=True))

    def _kept(self, batch: Any) -> tuple[Any, ...]:
        if self._values is None:
            self._fields = tuple(field.name for field in dataclasses.fields(batch))
            self._values = itemgetter(*self._fields)
        return self._values(vars(batch))


class _Isolated(AbstractContextManager[None]):
    """Does what SGLang's ``Scheduler._forward_isolation`` does on a speculative server; see there for the reasons."""

    __slots__ = ("_batch", "_kept", "_overlap", "_scheduler")

    def __init__(self, scheduler: Any, batch: Any, overlap: bool, kept: Iterable[tuple[str, Any]]) -> None:
        self._scheduler, self._batch, self._overlap, self._kept = scheduler, batch, overlap, kept

    def __enter__(self) -> None:
        batch, scheduler = self._batch, self._scheduler
        if batch.sampling_info is not None:
            info, penalties = batch.sampling_info, vars(batch).pop(NOTE, None)
            if penalties is None:
                batch.sampling_info = info.copy_for_forward()
            else:  # this round needs none of SGLang's
                batch.sampling_info = dataclasses.replace(
                    info, penalizer_orchestrator=None, acc_additive_penalties=penalties, acc_scaling_penalties=None
                )
        if self._overlap:
            # As in record_batch_in_overlap: the tensors outlive this round and the next.
            scheduler.batch_record_ct = (scheduler.batch_record_ct + 1) % 2
            scheduler.batch_record_buf[scheduler.batch_record_ct] = [batch, list(vars(batch).values())]

    def __exit__(self, *_: object) -> None:
        vars(self._batch).update(self._kept)
