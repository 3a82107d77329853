"""Chooses and accepts the tokens of greedy rounds from the likeliest token of each row of logits.

SGLang 0.5.23 runs ``torch.argmax``, which reads a row of the vocabulary with one thread block (27 us at batch size 8,
37 us at batch size 64 on an H200), and walks the drafts as a tree, also at zero steps, where it has one node. Here many
blocks read a row, and a second kernel writes the results of the verify, with drafts also the next round's inputs: two
launches instead of six or eight. `exact` accepts with them too, after it has added penalties. SGLang's code runs for
batches in which a penalty, a bias, a grammar or sampling changes the choice.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from sglang_adaptive.sglang_plugin.guard import Guard
from sglang_adaptive.sglang_plugin.stage import Rest, Stage
from sglang_adaptive.sglang_plugin.stages.fast_path.launches import Launches

PARTS, BLOCK = 64, 1024
"""Thread blocks that read a row of logits, and logits that a block reads at a time."""


@Launches
@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _best_of_parts(  # type: ignore[no-untyped-def, unused-ignore]
    logits, row_stride, width, best, places, PARTS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    share = tl.cdiv(width, PARTS)
    begin = part * share
    end = tl.minimum(begin + share, width)
    lane = tl.arange(0, BLOCK)
    value = tl.full([BLOCK], float("-inf"), tl.float32)
    place = begin + lane
    for first in range(begin, end, BLOCK):
        here = first + lane
        read = tl.load(logits + row * row_stride + here, mask=here < end, other=float("-inf")).to(tl.float32)
        read = tl.where(read != read, float("inf"), read)  # NaN is chosen, as by torch
        place = tl.where(read > value, here, place)  # of equal values the first
        value = tl.maximum(value, read)
    most = tl.max(value, 0)
    tl.store(best + row * PARTS + part, most)
    tl.store(places + row * PARTS + part, tl.min(tl.where(value == most, place, width), 0))


@Launches
@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _best_of_rows(best, places, width, chosen, accept_lens, accept_index, PARTS: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0)
    part = row * PARTS + tl.arange(0, PARTS)
    value, place = tl.load(best + part), tl.load(places + part)
    # The place of a part beyond the vocabulary is at least the width, so it is never the minimum.
    tl.store(chosen + row, tl.min(tl.where(value == tl.max(value, 0), place, width), 0))
    tl.store(accept_lens + row, 1)
    tl.store(accept_index + row, row)


def best_of_parts(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return the largest logit of each of PARTS parts of each row, float32 [rows, PARTS], and its place, int32.

    *logits* are [rows, vocabulary], rows dense. The place of an empty part is the vocabulary's size or more.
    """
    rows, width = logits.shape
    best = logits.new_empty((rows, PARTS), dtype=torch.float32)
    places = logits.new_empty((rows, PARTS), dtype=torch.int32)
    stride = logits.stride(0)
    kind = (logits.dtype, logits.data_ptr() % 16 == 0, stride % 16 == 0, width % 16 == 0)
    _best_of_parts(kind, (rows, PARTS), logits, stride, width, best, places, PARTS, BLOCK)
    return best, places


def choose(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return what SGLang's eagle_sample returns for a greedy batch of b > 0 requests with one node each.

    *logits* are [b, vocabulary], rows dense. Returns the likeliest token, [b] (the first of equal ones, as in
    torch.argmax); the number of accepted tokens, ones, [b]; and each request's nodes, 0 to b - 1, [b, 1]. All are new
    int32 tensors on the device of *logits*; nothing waits for them.
    """
    requests, width = logits.shape
    best, places = best_of_parts(logits)
    # Separate allocations, because another pointer alignment would compile the kernel again.
    chosen, accept_lens, accept_index = (logits.new_empty(requests, dtype=torch.int32) for _ in range(3))
    _best_of_rows(width, (requests, 1), best, places, width, chosen, accept_lens, accept_index, PARTS)
    return chosen, accept_lens, accept_index.unsqueeze(1)


class LikeliestTokens(Stage):
    """Chooses the tokens of greedy zero-step rounds instead of SGLang."""

    def __init__(self) -> None:
        self.guard = Guard("zero-step-choice")

    def sample(
        self, rest: Rest, verify_input: Any, batch: Any, logits_output: Any, grammar_mask: Any = None, *more: Any,
        **options: Any,
    ) -> Any:  # fmt: skip
        """Return a round's outcome, as `choose` does where it can."""
        found, logits = None, logits_output.next_token_logits
        if logits.is_cuda and verify_input.draft_token_num == 1:
            found = self.guard.attempt(_chosen, batch, logits, grammar_mask, options.get("watermark_state"))
        return rest(verify_input, batch, logits_output, grammar_mask, *more, **options) if found is None else found


def _chosen(batch: Any, logits: Tensor, grammar_mask: Any, watermark_state: Any) -> Any:
    dense = logits.stride(1) == 1 and logits.shape[0] == len(batch.seq_lens) > 0
    whole = dense and not batch.forward_mode.is_idle()
    return choose(logits) if whole and is_plainly_greedy(batch, grammar_mask, watermark_state) else None


def is_plainly_greedy(batch: Any, grammar_mask: Any, watermark_state: Any) -> bool:
    """Whether each token of *batch* is simply the likeliest one of its row of logits."""
    info = batch.sampling_info
    between = (info.acc_additive_penalties, info.acc_scaling_penalties, info.logit_bias, grammar_mask, watermark_state)
    return all(part is None for part in between) and takes_likeliest(info)


def takes_likeliest(info: Any) -> bool:
    """Whether SGLang's sampler takes the likeliest token of each row of the logits that it gets."""
    from sglang.srt.environ import envs

    sanitizes = envs.SGLANG_SANITIZE_NAN_LOGITS.get()
    return bool(info.is_all_greedy and not info.has_custom_logit_processor and not sanitizes)


@Launches
@triton.jit(do_not_specialize=["vocabulary"], do_not_specialize_on_alignment=["drafts", "seq_lens"])  # type: ignore[untyped-decorator, unused-ignore]
def _accepted_chains(  # type: ignore[no-untyped-def, unused-ignore]
    best, places, vocabulary, drafts, seq_lens, predict, index, ids, lens, correct, select, lengths, bonus,
    PARTS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    request = tl.program_id(0)
    first = request * WIDTH
    part = tl.arange(0, PARTS)
    taken = 0
    last = 0
    goes_on = 1
    for place in tl.static_range(WIDTH):
        row = (first + place) * PARTS
        value, at = tl.load(best + row + part), tl.load(places + row + part)
        # The place of a part beyond the vocabulary is at least the vocabulary's size, so it is never the minimum.
        token = tl.min(tl.where(value == tl.max(value, 0), at, vocabulary), 0)
        tl.store(predict + first + place, tl.where(goes_on == 1, token, 0))
        tl.store(ids + first + place, tl.where(goes_on == 1, token, 0).to(tl.int64))
        tl.store(index + first + place, tl.where(goes_on == 1, first + place, -1))
        last = tl.where(goes_on == 1, token, last)
        taken += goes_on
        if place + 1 < WIDTH:
            goes_on = tl.where(tl.load(drafts + first + place + 1).to(tl.int32) == token, goes_on, 0)
    tl.store(lens + request, taken)
    tl.store(correct + request, taken - 1)
    tl.store(select + request, (first + taken - 1).to(tl.int64))
    tl.store(lengths + request, tl.load(seq_lens + request) + taken)
    tl.store(bonus + request, last)


def commit(logits: Tensor, drafts: Tensor, seq_lens: Tensor, width: int) -> tuple[Any, ...]:
    """Accept the drafts of b > 0 requests that are the likeliest tokens, and prepare the next round's inputs.

    *logits* are [b * width, vocabulary] with dense rows; *drafts* [b * width] are each request's last token and its
    width - 1 drafts; *seq_lens* are [b] int64. Returns what SGLang's eagle_sample and prepare_verify_commit_outputs
    return for a greedy batch: the tokens after the accepted ones, 0 elsewhere, int32 [b * width]; each request's number
    of new tokens, int32 [b]; its accepted rows, then -1, int32 [b, width]; its new length, int64 [b]; its last token,
    int32 [b]; and for the draft extend (accepted drafts int32 [b], last accepted row int64 [b], tokens int64
    [b * width]). Of equal logits the first wins, as in torch.argmax. Nothing waits for the device.
    """
    rows, vocabulary = logits.shape
    requests = rows // width
    best, places = best_of_parts(logits)
    # Separate allocations, because another pointer alignment would compile the kernel again.
    predict, index = (logits.new_empty(rows, dtype=torch.int32) for _ in range(2))
    lens, correct, bonus = (logits.new_empty(requests, dtype=torch.int32) for _ in range(3))
    select, lengths = (logits.new_empty(requests, dtype=torch.int64) for _ in range(2))
    ids = logits.new_empty(rows, dtype=torch.int64)
    _accepted_chains(
        (width, drafts.dtype), (requests, 1), best, places, vocabulary, drafts, seq_lens, predict, index, ids, lens,
        correct, select, lengths, bonus, PARTS, width,
    )  # fmt: skip
    return predict, lens, index.view(requests, width), lengths, bonus, (correct, select, ids)


def committed(verify_input: Any, batch: Any, logits: Tensor) -> tuple[Any, ...] | None:
    """Return what `commit` returns; None for a round whose tokens do not depend on the logits alone."""
    if not (fits(verify_input, batch, logits) and is_plainly_greedy(batch, None, None)):
        return None
    return commit(logits, verify_input.draft_token, batch.seq_lens, verify_input.draft_token_num)


def fits(verify_input: Any, batch: Any, logits: Tensor) -> bool:
    """Whether `commit` can read a round of chains, and SGLang's verify would not make up what is accepted."""
    from sglang.srt.speculative import spec_utils

    drafts, seq_lens, width = verify_input.draft_token, batch.seq_lens, verify_input.draft_token_num
    dense = logits.stride(1) == 1 and drafts.is_contiguous() and seq_lens.is_contiguous()
    whole = seq_lens.dtype == torch.int64 and logits.shape[0] == seq_lens.shape[0] * width > 0
    # Benchmarks that draw or replay acceptance do so in SGLang's verify.
    return bool(logits.is_cuda and dense and whole and spec_utils.SIMULATE_ACC_LEN <= 0)
