"""Applies penalties and minimum lengths to each row of a verify, by the text before it.

SGLang 0.5.23 gives its penalizers one token per round, the last that the host knows, and applies the first row's
penalties to all rows of a verify. Here a table on the device has, for each request with penalties, the sums of all
tokens before the root of its next verify. A round adds its root and drafts to them for each row, and after the verify
the accepted ones to the table. So nothing waits for the host, and little is launched. The host sends something only
when requests join or leave, and tokens only of a request that has written some before, as after a retraction.

Sums are made token by token, like the penalizers', so a row's penalties match a server without speculation bit for bit.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
import triton.language as tl
from torch import Tensor

from sglang_adaptive.sglang_plugin.stages.fast_path.launches import launched

TINY = 1e-30
"""Frequency penalties below this count as none: their sums could be 0, which means that a token is not in the text."""
PARTS, BLOCK, MOST = 32, 1024, 64
"""Of the kernels: thread blocks of a row, entries that one has at a time, and tokens that a request can accept."""


class HostText:
    """Lets SGLang's penalizers count every output token that the host knows, once each, where SGLang applies them."""

    def __init__(self) -> None:
        self._counted: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        """By request: the output tokens that its penalizers have counted."""

    def count_again(self, batch: Any) -> None:
        """Count all output tokens of *batch*, a prefill, which has new penalizers.

        A request has output there after a retraction; each chunk of its prefill has new penalizers.
        """
        for req in batch.reqs:
            self._counted.pop(req, None)
        self.count(batch)

    def count(self, batch: Any) -> None:
        """Count the output tokens of *batch* that its penalizers have not counted."""
        from sglang.srt.sampling import penaltylib

        orchestrator = batch.sampling_info.penalizer_orchestrator
        rows: list[int] = []
        tokens: list[int] = []
        for row, req in enumerate(batch.reqs):
            new = req.output_ids[self._counted.get(req, 0) :]
            rows += [row] * len(new)
            tokens += new
            self._counted[req] = len(req.output_ids)
        outputs = [len(req.output_ids) for req in batch.reqs]
        numbers = _on_device([*outputs, *rows, *tokens], torch.int64, orchestrator.device)
        lengths, at, of = numbers.split([len(outputs), len(rows), len(tokens)])

        for kind, name, how in (
            (penaltylib.BatchedFrequencyPenalizer, "frequency", "scatter_add_"),
            (penaltylib.BatchedPresencePenalizer, "presence", "scatter_"),
            (penaltylib.BatchedRepetitionPenalizer, "repetition", "scatter_"),
        ):
            penalizer = orchestrator.penalizers.get(kind)
            if penalizer is not None and penalizer.is_prepared():
                table, one = getattr(penalizer, f"cumulated_{name}_penalties"), getattr(penalizer, f"{name}_penalties")
                getattr(table.view(-1), how)(0, at * table.shape[1] + of, one.view(-1)[at])
        shortest = orchestrator.penalizers.get(penaltylib.BatchedMinNewTokensPenalizer)
        if shortest is not None and shortest.is_prepared():
            shortest.len_output_tokens = lengths.to(torch.int32).unsqueeze(1)


def _on_device(numbers: Sequence[Any], dtype: torch.dtype, device: Any) -> Tensor:
    from sglang.srt.utils.common import is_pin_memory_available

    pinned = torch.tensor(numbers, dtype=dtype, pin_memory=is_pin_memory_available(str(device)))
    return pinned.to(device, non_blocking=True)


@dataclass(frozen=True, slots=True)
class Batch:
    """What penalties need to know of a batch; it stays the same until requests join or leave."""

    made_for: Tensor
    """The temperatures of the batch: SGLang makes new ones when requests join or leave."""
    whole: Tensor
    """int64 [2, requests]: row of the table, and the position from which a text may end."""
    each: Tensor
    """float32 [4, requests]: frequency, presence and repetition penalty, and what a token adds to its sum.

    That is the frequency penalty, or 1 if there is none, so a sum is 0 if and only if a token is not in the text.
    """
    stops: Tensor | None
    """int64 [requests, n]: the tokens that end a text, then -1; None if no request has a minimum length."""
    adds: bool
    """Whether a request has a frequency or presence penalty."""
    scales: bool
    """Whether a request has a repetition penalty."""


class Sums:
    """Sums of the penalties of every token of the texts in a batch, on the device."""

    def __init__(self) -> None:
        self._rows: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        """By request: its row of the table. A request without penalties has row 0, which stays 0."""
        self._table: Tensor | None = None
        self._batch: Batch | None = None

    def forget(self, reqs: Sequence[Any] | None = None) -> None:
        """Count the texts of *reqs*, or of all requests, again when they are next in a batch."""
        for req in list(self._rows) if reqs is None else reqs:
            self._rows.pop(req, None)
        self._batch = None

    def apply(self, batch: Any, verify_input: Any, logits: Tensor) -> None:
        """Add to each row of *logits* [requests * width, vocabulary] the penalties of the text before it, in place."""
        known = self._of(batch, logits.shape[1])
        assert self._table is not None
        drafts, positions = verify_input.draft_token, verify_input.positions
        dense = logits.stride(1) == 1 and drafts.is_contiguous() and positions.is_contiguous()
        by_kernel = logits.is_cuda and dense and verify_input.tree_topk == 1 and logits.dtype == torch.float32
        (penalize if by_kernel else _penalize)(logits, self._table, known, verify_input)

    def count(self, batch: Any, verify_input: Any, index: Tensor) -> None:
        """Count the nodes that a verify accepted: *index* [requests, depth], int32, -1 for none."""
        drafts, table = verify_input.draft_token, self._table
        known = self._of(batch, 0 if table is None else table.shape[1])
        assert table is not None
        if table.is_cuda and index.is_contiguous() and index.shape[1] <= MOST:
            count(table, known, drafts, index)
            return
        places = known.whole[0, :, None] * table.shape[1] + drafts[index.clamp(min=0)]
        table.view(-1).scatter_add_(0, places.flatten(), (known.each[3, :, None] * (index >= 0)).flatten())

    def _of(self, batch: Any, vocabulary: int) -> Batch:
        made_for = batch.sampling_info.temperatures
        if self._batch is None or self._batch.made_for is not made_for:
            self._batch = self._made(batch, made_for, vocabulary)
        return self._batch

    def _made(self, batch: Any, made_for: Tensor, vocabulary: int) -> Batch:
        device, before, rows = batch.seq_lens.device, self._rows, WeakKeyDictionary[Any, int]()
        taken = {before[req] for req in batch.reqs if req in before}
        free = (row for row in itertools.count(1) if row not in taken)
        whole: list[tuple[int, int]] = []
        each: list[tuple[float, ...]] = []
        joined: list[tuple[int, int, Any]] = []
        for place, req in enumerate(batch.reqs):
            how, row, unit = req.sampling_params, 0, 0.0
            frequency = how.frequency_penalty if abs(how.frequency_penalty) > TINY else 0.0
            if frequency or how.presence_penalty or how.repetition_penalty != 1:
                row, unit = before.get(req) or next(free), frequency or 1.0
                rows[req] = row
                if req not in before:
                    joined.append((place, row, req))
            until = len(req.origin_input_ids) + how.min_new_tokens - 1 if how.min_new_tokens > 0 else 0
            whole.append((row, until))
            each.append((frequency, how.presence_penalty, how.repetition_penalty, unit))
        stops = [_stops(req) for req in batch.reqs] if any(until for _, until in whole) else []
        most = max(map(len, stops), default=0)
        made = Batch(
            made_for,
            _on_device([*zip(*whole, strict=True)], torch.int64, device),
            _on_device([*zip(*each, strict=True)], torch.float32, device),
            _on_device([[*ids, *[-1] * (most - len(ids))] for ids in stops], torch.int64, device) if most else None,
            adds=any(frequency or presence for frequency, presence, *_ in each),
            scales=any(repetition != 1 for _, _, repetition, _ in each),
        )
        self._join(joined, made, batch.seq_lens, max(rows.values(), default=0) + 1, vocabulary)
        self._rows = rows
        return made

    def _join(
        self, joined: list[tuple[int, int, Any]], made: Batch, seq_lens: Tensor, needed: int, vocabulary: int
    ) -> None:
        """Give the requests that *joined* their rows, with the tokens before the root of their next verify.

        They are output that the host knows: rounds whose result is pending have added theirs, or are prefills, whose
        token is the root.
        """
        old = self._table
        if old is None or len(old) < needed:
            size = 1 << (needed - 1).bit_length()
            self._table = torch.zeros((size, vocabulary), dtype=torch.float32, device=seq_lens.device)
            if old is not None:
                self._table[: len(old)] = old
        table = self._table
        assert table is not None
        if joined:
            table.index_fill_(0, _on_device([row for _, row, _ in joined], torch.int64, table.device), 0)
        numbers = [
            (place, row * table.shape[1] + token, len(req.origin_input_ids) + number)
            for place, row, req in joined
            for number, token in enumerate(req.output_ids)
        ]
        if numbers:
            places, entries, positions = _on_device([*zip(*numbers, strict=True)], torch.int64, table.device)
            units = made.each[3][places] * (positions < seq_lens[places])
            table.view(-1).scatter_add_(0, entries, units)


def _stops(req: Any) -> list[int]:
    """Return the tokens that a minimum length rules out, as SGLang's penalizer does."""
    tokenizer = req.tokenizer
    ids = {*(req.sampling_params.stop_token_ids or ()), *(req.eos_token_ids or ())}
    ids |= {*(tokenizer.additional_stop_token_ids or ()), tokenizer.eos_token_id}
    return sorted(ids - {None})


def _penalize(logits: Tensor, table: Tensor, known: Batch, verify_input: Any) -> None:
    """Do what the kernel does, for trees too."""
    width = verify_input.draft_token_num
    nodes = verify_input.draft_token.view(-1, width).long()
    frequency, presence, repetition, unit = known.each[:, :, None]
    if known.adds or known.scales:
        requests = len(nodes)
        among = (unit[..., None] * paths(verify_input)).flatten(0, 1)
        tokens = nodes[:, None].expand(-1, width, -1).flatten(0, 1)
        sums = table[known.whole[0]].repeat_interleave(width, 0).scatter_add_(1, tokens, among)
        sums = sums.view(requests, width, -1)
        rows, seen = logits.view(requests, width, -1), sums != 0
    if known.adds:
        spent = torch.where(frequency[..., None] != 0, sums, 0)
        rows.sub_(spent.add_(seen * presence[..., None]))
    if known.scales:
        from sglang.srt.sampling.penaltylib.repetition_penalty import apply_scaling_penalties

        apply_scaling_penalties(logits, torch.where(seen, repetition[..., None], 1).flatten(0, 1))
    if known.stops is not None:
        early = verify_input.positions.view(-1, width, 1) < known.whole[1, :, None, None]
        ruled_out = torch.where(early & (known.stops >= 0)[:, None], -torch.inf, 0.0).to(logits.dtype).flatten(0, 1)
        logits.scatter_add_(1, known.stops.clamp(min=0).repeat_interleave(width, 0), ruled_out)


def paths(verify_input: Any) -> Tensor:
    """Return bool [requests, width, width]: for (j, k), whether node k is node j or before it in the text.

    Padding nodes after a tree's last one come before no other node.
    """
    width, device = verify_input.draft_token_num, verify_input.draft_token.device
    if verify_input.tree_topk == 1:
        return torch.ones((1, width, width), dtype=torch.bool, device=device).tril_()
    nodes = torch.arange(width, device=device)
    itself = torch.eye(width, device=device)
    siblings = _closure(itself + (verify_input.retrieve_next_sibling[..., None] == nodes))
    first = (verify_input.retrieve_next_token[..., None] == nodes).float()
    return _closure(itself + first @ siblings).transpose(1, 2) > 0


def _closure(links: Tensor) -> Tensor:
    """Return the transitive closure of *links* [requests, width, width], which are 1 or 0."""
    for _ in range((links.shape[1] - 1).bit_length()):
        links = (links @ links).clamp_(max=1)
    return links


# Applies penalties to the rows of a chain's verify with one kernel, and counts its accepted tokens with another.
#
# Few tokens of a vocabulary are in a request's text. So the sums are read whole, but logits only where there is a
# penalty. Trees of drafts, and a CPU, have the same in torch above.


@launched
def _penalized_rows(  # type: ignore[no-untyped-def, unused-ignore]
    logits, row_stride, width, requests, vocabulary, table, whole, each, drafts, positions, stops, listed,
    PARTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    request = row // width
    at = tl.load(whole + request)
    listed = tl.where(tl.load(whole + requests + request) > tl.load(positions + row), listed, 0)
    if (at > 0) | (listed > 0):
        frequency, presence = tl.load(each + request), tl.load(each + requests + request)
        repetition, unit = tl.load(each + 2 * requests + request), tl.load(each + 3 * requests + request)
        share = tl.cdiv(vocabulary, PARTS)
        begin = part * share
        end = tl.minimum(begin + share, vocabulary)
        for first in range(begin, end, BLOCK):
            here = first + tl.arange(0, BLOCK)
            sums = tl.load(table + at * vocabulary + here, mask=here < end, other=0.0)
            for node in range(request * width, row + 1):
                sums = tl.where(here == tl.load(drafts + node), sums + unit, sums)
            stopped = here < 0
            for place in range(request * listed, (request + 1) * listed):
                stopped = stopped | (here == tl.load(stops + place))
            seen = sums != 0.0
            touched = (seen | stopped) & (here < end)
            old = tl.load(logits + row * row_stride + here, mask=touched, other=0.0)
            spent = tl.where(frequency != 0.0, sums, 0.0) + tl.where(seen, presence, 0.0)
            new = old - tl.where(stopped, float("inf"), spent)
            factor = tl.where(seen, repetition, 1.0)
            new = tl.where(new < 0.0, new * factor, new / factor)
            tl.store(logits + row * row_stride + here, new, mask=touched)


@launched
def _counted_tokens(  # type: ignore[no-untyped-def, unused-ignore]
    table, whole, each, requests, vocabulary, drafts, index, depth, MOST: tl.constexpr
):  # fmt: skip
    request = tl.program_id(0)
    at = tl.load(whole + request)
    lane = tl.arange(0, MOST)
    node = tl.load(index + request * depth + lane, mask=lane < depth, other=-1)
    kept = (node >= 0) & (at > 0)
    token = tl.load(drafts + node, mask=kept, other=0)
    unit = tl.load(each + 3 * requests + request)
    # All terms of an entry are equal, so their order does not matter.
    tl.atomic_add(table + at * vocabulary + token, tl.zeros([MOST], tl.float32) + unit, mask=kept)


def penalize(logits: Tensor, table: Tensor, known: Batch, verify_input: Any) -> None:
    """Add penalties to float32 *logits* [requests * width, vocabulary], rows dense, in place.

    Drafts and positions of *verify_input* are [requests * width]. Nothing waits for the device.
    """
    rows, vocabulary = logits.shape
    whole, stops, drafts, positions = known.whole, known.stops, verify_input.draft_token, verify_input.positions
    listed = 0 if stops is None else stops.shape[1]
    _penalized_rows(
        (drafts.dtype, positions.dtype), (rows, PARTS), logits, logits.stride(0), verify_input.draft_token_num,
        whole.shape[1], vocabulary, table, whole, known.each, drafts, positions, whole if stops is None else stops,
        listed, PARTS, BLOCK,
    )  # fmt: skip


def count(table: Tensor, known: Batch, drafts: Tensor, index: Tensor) -> None:
    """Add the tokens of *drafts* at *index* [requests, depth], -1 for none, to *table*; depth is at most MOST."""
    requests, depth = index.shape
    _counted_tokens(
        (drafts.dtype, index.dtype), (requests, 1), table, known.whole, known.each, requests, table.shape[1], drafts,
        index, depth, MOST,
    )  # fmt: skip
