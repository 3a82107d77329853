"""Chooses the tokens of greedy zero-step rounds: each request's likeliest token, without a verify.

SGLang 0.5.23 verifies a tree with one node: ``torch.argmax``, which reads a row of the vocabulary with one thread block
(27 us at batch size 8, 37 us at batch size 64 on an H200), and five small kernels that fill and walk the tree. Here
many blocks read a row, and a second kernel writes the results of the verify. SGLang's code runs for batches in which a
penalty, a bias, a grammar or sampling changes the choice.
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


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _best_of_rows(best, places, width, chosen, accept_lens, accept_index, PARTS: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0)
    part = row * PARTS + tl.arange(0, PARTS)
    value, place = tl.load(best + part), tl.load(places + part)
    # The place of a part beyond the vocabulary is at least the width, so it is never the minimum.
    tl.store(chosen + row, tl.min(tl.where(value == tl.max(value, 0), place, width), 0))
    tl.store(accept_lens + row, 1)
    tl.store(accept_index + row, row)


_launch_best_of_parts, _launch_best_of_rows = Launches(_best_of_parts), Launches(_best_of_rows)


def best_of_parts(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return the largest logit of each of PARTS parts of each row, float32 [rows, PARTS], and its place, int32.

    *logits* are [rows, vocabulary], rows dense. The place of an empty part is the vocabulary's size or more.
    """
    rows, width = logits.shape
    best = logits.new_empty((rows, PARTS), dtype=torch.float32)
    places = logits.new_empty((rows, PARTS), dtype=torch.int32)
    stride = logits.stride(0)
    kind = (logits.dtype, logits.data_ptr() % 16 == 0, stride % 16 == 0, width % 16 == 0)
    _launch_best_of_parts(kind, (rows, PARTS), logits, stride, width, best, places, PARTS, BLOCK)
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
    _launch_best_of_rows(width, (requests, 1), best, places, width, chosen, accept_lens, accept_index, PARTS)
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
    whole = (
        logits.is_cuda
        and logits.stride(1) == 1
        and logits.shape[0] == len(batch.seq_lens) > 0
        and not batch.forward_mode.is_idle()
    )
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
