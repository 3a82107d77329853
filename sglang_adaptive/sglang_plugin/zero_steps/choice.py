"""The tokens of a greedy round at zero steps: each request's likeliest token, without a verification.

SGLang 0.5.23 verifies a tree with one node: ``torch.argmax``, which reads a row of the vocabulary with one block of
threads (27 us at batch 8, 37 us at batch 64 on an H200), and five small kernels that fill and walk the tree. Here many
blocks read a row, and a second kernel writes the results of the verification. SGLang's code runs for batches in which a
penalty, a bias, a grammar or sampling changes the choice.
SGLANG_ADAPTIVE_ZERO_STEP_CHOICE=0 in the server's environment restores SGLang's code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl

from sglang_adaptive.sglang_plugin.hooking.fallback import Fallback

if TYPE_CHECKING:
    from torch import Tensor

PARTS, BLOCK = 64, 1024
"""Thread blocks that read a row of logits, and logits that a block reads at a time."""

_fallback = Fallback(
    "adaptive: zero-step rounds are verified like others from now on", "SGLANG_ADAPTIVE_ZERO_STEP_CHOICE"
)


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
        place = tl.where(read > value, here, place)  # of equal ones the first
        value = tl.maximum(value, read)
    most = tl.max(value, 0)
    tl.store(best + row * PARTS + part, most)
    tl.store(places + row * PARTS + part, tl.min(tl.where(value == most, place, width), 0))


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _best_of_rows(best, places, width, chosen, accept_lens, accept_index, PARTS: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0)
    part = row * PARTS + tl.arange(0, PARTS)
    value, place = tl.load(best + part), tl.load(places + part)
    # The place of a part beyond the vocabulary is at least the width, so it is never the smallest.
    tl.store(chosen + row, tl.min(tl.where(value == tl.max(value, 0), place, width), 0))
    tl.store(accept_lens + row, 1)
    tl.store(accept_index + row, row)


def choose(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return what SGLang's eagle_sample returns for a greedy batch of b > 0 requests with one node each.

    *logits* are [b, vocabulary], rows dense. Returns the likeliest token, [b] (the first of equal ones, as
    torch.argmax); the tokens accepted, ones, [b]; and each request's nodes, 0 to b - 1, [b, 1]. All are new int32
    tensors on the device of *logits*; nothing waits for them.
    """
    requests, width = logits.shape
    best = logits.new_empty((requests, PARTS), dtype=torch.float32)
    places = logits.new_empty((requests, PARTS), dtype=torch.int32)
    # Separate allocations, because kernels are compiled again for pointers of another alignment.
    chosen, accept_lens, accept_index = (logits.new_empty(requests, dtype=torch.int32) for _ in range(3))
    _best_of_parts[(requests, PARTS)](logits, logits.stride(0), width, best, places, PARTS=PARTS, BLOCK=BLOCK)
    _best_of_rows[(requests,)](best, places, width, chosen, accept_lens, accept_index, PARTS=PARTS)
    return chosen, accept_lens, accept_index.unsqueeze(1)


def sample(
    original: Callable[..., Any], verify_input: Any, batch: Any, logits_output: Any, grammar_mask: Any = None,
    *more: Any, watermark_state: Any = None, **options: Any,
) -> Any:  # fmt: skip
    """Around SGLang's eagle_sample, as run_eagle_verify calls it: choose the tokens of a greedy zero-step round."""
    if not _fallback.in_use and verify_input.draft_token_num == 1:
        with _fallback:
            logits = logits_output.next_token_logits
            if grammar_mask is None and watermark_state is None and _is_plain(batch, logits):
                return choose(logits)
    return original(verify_input, batch, logits_output, grammar_mask, *more, watermark_state=watermark_state, **options)


def _is_plain(batch: Any, logits: Tensor) -> bool:
    """Whether each request gets the likeliest token of *logits*."""
    from sglang.srt.environ import envs

    info = batch.sampling_info
    between = (info.acc_additive_penalties, info.acc_scaling_penalties, info.logit_bias)
    return bool(
        info.is_all_greedy
        and all(part is None for part in between)
        and not envs.SGLANG_SANITIZE_NAN_LOGITS.get()
        and not batch.forward_mode.is_idle()
        and logits.is_cuda
        and logits.stride(1) == 1
        and logits.shape[0] == len(batch.seq_lens) > 0
    )
