"""Accepts chains of drafts greedily and prepares the next round's inputs, with two kernels.

SGLang 0.5.23 runs ``torch.argmax``, which reads a row of the vocabulary with one thread block, walks the drafts as a
tree, and prepares the next round's inputs: eight launches. Here many blocks read a row, as at zero steps
(`likeliest_tokens.py`), and one kernel does the rest. `exact` accepts with them too, after it has added penalties.
SGLang's code runs for batches in which a bias, a grammar or sampling changes the choice.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from sglang_adaptive.sglang_plugin.guard import Guard
from sglang_adaptive.sglang_plugin.stages.fast_path.launches import Launches
from sglang_adaptive.sglang_plugin.stages.fast_path.likeliest_tokens import PARTS, best_of_parts, is_plainly_greedy


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


_launch_accepted_chains = Launches(_accepted_chains)


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
    _launch_accepted_chains(
        (width, drafts.dtype), (requests, 1), best, places, vocabulary, drafts, seq_lens, predict, index, ids, lens,
        correct, select, lengths, bonus, PARTS, width,
    )  # fmt: skip
    return predict, lens, index.view(requests, width), lengths, bonus, (correct, select, ids)


class GreedyCommit:
    """Accepts the drafts of greedy rounds instead of SGLang."""

    def __init__(self) -> None:
        self.guard = Guard("greedy-commit")
        self.rounds = 0

    def of(self, verify_input: Any, batch: Any, logits: Tensor) -> tuple[Any, ...] | None:
        """Return what `commit` returns; None for a round whose tokens do not depend on the logits alone."""
        found = self.guard.attempt(_commit, verify_input, batch, logits)
        self.rounds += found is not None
        return found


def _commit(verify_input: Any, batch: Any, logits: Tensor) -> tuple[Any, ...] | None:
    if not (fits(verify_input, batch, logits) and is_plainly_greedy(batch, None, None)):
        return None
    return commit(logits, verify_input.draft_token, batch.seq_lens, verify_input.draft_token_num)


def fits(verify_input: Any, batch: Any, logits: Tensor) -> bool:
    """Whether `commit` can read a round of chains, and SGLang's verify would not make up what is accepted."""
    from sglang.srt.speculative import spec_utils

    drafts, seq_lens, width = verify_input.draft_token, batch.seq_lens, verify_input.draft_token_num
    return bool(
        logits.is_cuda
        and logits.stride(1) == 1
        and drafts.is_contiguous()
        and seq_lens.is_contiguous()
        and seq_lens.dtype == torch.int64
        and logits.shape[0] == seq_lens.shape[0] * width > 0
        and spec_utils.SIMULATE_ACC_LEN <= 0  # benchmarks that draw or replay acceptance do so in SGLang's verify
    )
