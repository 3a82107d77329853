"""Inputs of NGRAM's rounds: only the root at zero steps, otherwise part of the widest tree; and the prompts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sglang_adaptive.sglang_plugin.contract import links_from_mask
from sglang_adaptive.sglang_plugin.guard import Guard

Ints = npt.NDArray[np.int64]

PROMPT_TOKENS = 256
"""Prompt tokens that the corpus reads per round: some 10 us each, on its own thread, while the device verifies."""
MOST_UNREAD = 1 << 16
"""Prompt tokens that may wait, 0.5 MB. If more arrive than can be read, the oldest prompts are dropped: their requests
are the first to end."""


class Prompts:
    """The prompts that a corpus has yet to read.

    SGLang 0.5.23 inserts generated text and the last few tokens of a prompt. But output often copies the prompt: with
    prompts a tree of 11 drafts yields five times the tokens per round in edits of whole files (docs/performance.md).
    """

    def __init__(self, depth: int) -> None:
        """*depth* is the length of the corpus's longest entry, in tokens."""
        # A rank that lacks prompts would draft different trees.
        self.guard = Guard("ngram-prompts")
        self._depth = depth
        self._unread: dict[str, tuple[Sequence[int], int]] = {}
        """By request, in order of arrival: its prompt and the number of its tokens that the corpus has."""

    def join(self, reqs: Sequence[Any]) -> None:
        """Add the prompts of *reqs*, a prefill's, except those of requests with output, which were added before."""
        self.guard.attempt(self._join, reqs)

    def read(self, corpus: Any) -> None:
        """Let *corpus* read more, once per round or prefill."""
        if self._unread:
            self.guard.attempt(self._put, corpus)

    def forget(self) -> None:
        """Drop unread prompts when the corpus is emptied."""
        self._unread.clear()

    def _join(self, reqs: Sequence[Any]) -> None:
        for req in reqs:
            prompt = req.origin_input_ids_unpadded
            if not req.output_ids and (req.rid not in self._unread or self._unread[req.rid][0] is not prompt):
                self._unread.pop(req.rid, None)  # of an earlier request with this id
                self._unread[req.rid] = prompt, 0
        left = sum(len(prompt) - begin for prompt, begin in self._unread.values())
        while left > MOST_UNREAD and len(self._unread) > 1:
            prompt, begin = self._unread.pop(next(iter(self._unread)))
            left -= len(prompt) - begin

    def _put(self, corpus: Any) -> None:
        parts, left = [], PROMPT_TOKENS
        while self._unread and left:
            rid, (prompt, begin) = next(iter(self._unread.items()))
            end = min(len(prompt), begin + left)
            parts.append(list(prompt[max(0, begin - self._depth + 1) : end]))  # entries across the cut as well
            left -= end - begin
            if end < len(prompt):
                self._unread[rid] = prompt, end
            else:
                del self._unread[rid]
        corpus.batch_put(parts)


def prepare_roots(worker: Any, batch: Any) -> bool:
    """Make *batch* a verify of one-node trees, each request's last token, prepared on the device; return True.

    Before it launches the verify, SGLang 0.5.23 reads the previous round's accepted tokens on the host, waits for the
    corpus and builds each request's mask separately. On an H100 with Llama-3.1-8B's shape such a zero-step round takes
    1.6 times as long as a plain decode for one request, and 2.4 times for 64. Here the corpus reads what the scheduler
    has processed so far, and the rest in later rounds.
    """
    from sglang.srt.model_executor.forward_batch_info import ForwardMode
    from sglang.srt.speculative import ngram_worker
    from sglang.srt.speculative.ngram_info import NgramVerifyInput

    size = len(batch.reqs)
    roots = worker.draft_tokens_batch[size].copy_(last_tokens(batch.spec_info))
    tree = {
        "positions": worker.positions_batch[size],
        "retrieve_index": worker.retrieve_indexes_batch[size],
        "retrieve_next_token": worker.retrieve_next_token_batch[size],
        "retrieve_next_sibling": worker.retrieve_next_sibling_batch[size],
    }
    mask = worker.tree_mask_batch[size].fill_(True)
    links_from_mask(ngram_worker)(mask, batch.seq_lens, *tree.values(), size, 1)
    if ngram_worker.USE_FULL_MASK and not ngram_worker._is_cpu:
        length = size + tokens_at_most(batch, worker.model_runner.model_config.context_len)
        mask = torch.ones(length, dtype=torch.bool, device=worker.device)
    worker.prev_token_ids, worker.prev_accept_lens = [], [0] * size
    worker.grammar_tree_host = (np.ones(size, dtype=bool), roots.cpu().numpy()) if batch.has_grammar else None

    slots = ngram_worker.assign_extend_cache_locs_func(
        req_pool_indices=batch.req_pool_indices,
        req_to_token=batch.req_to_token_pool.req_to_token,
        start_offset=batch.seq_lens,
        end_offset=batch.seq_lens + 1,
        batch_size=size,
        draft_token_num=1,
        device=worker.device,
    )
    verify = NgramVerifyInput(draft_token=roots, custom_mask=mask, draft_token_num=1, **tree)
    ngram_worker.prepare_mamba_track_for_verify(batch)
    batch.forward_mode, batch.input_ids, batch.out_cache_loc = ForwardMode.TARGET_VERIFY, roots, slots
    batch.spec_info = verify
    return True


def tokens_at_most(batch: Any, context_len: int) -> int:
    """Return the sum of the requests' lengths, or an upper bound if the host does not know them.

    A request has slots for all tokens that it may have in this round. A mask in which each token sees all before it may
    be too long: its reader knows where each request starts.
    """
    if batch.seq_lens_cpu is not None:
        return int(batch.seq_lens_cpu.sum())
    return sum(min(req.kv.kv_allocated_len, context_len) for req in batch.reqs)


def last_tokens(handed_over: Any) -> torch.Tensor:
    """Return each request's last accepted token, (requests,), from what the previous round handed over."""
    accepted = handed_over.accept_tokens.view(len(handed_over.accept_lens), -1)
    return accepted.gather(1, handed_over.accept_lens.long()[:, None] - 1).flatten()


def cut(tokens: Ints, mask: Ints, widest: int, width: int) -> tuple[Ints, Ints]:
    """Keep *width* nodes of each tree, those with the most descendants first.

    SGLang's corpus returns trees of one fixed width, level by level, without order within a level. Entry (i, j) of the
    mask is 1 if node j is i or an ancestor of i.

    *tokens* [requests * widest] and *mask* [requests * widest * widest] come from the corpus; the result has the same
    form at *width*. A node has fewer descendants than its parent, so parents are kept and come first, as SGLang needs.

    This keeps the longest continuation; level order would keep one token of many. On replayed text this cut accepts as
    much as the trees of a corpus built for the width, and level order up to 7% less (benchmarks/ngram_cut.py at commit
    943bf9f).
    """
    if width == widest:
        return tokens, mask
    tokens, mask = tokens.reshape(-1, widest), mask.reshape(-1, widest, widest)
    below = mask.sum(axis=1)
    padding = (tokens == 0) & (mask.sum(axis=2) == 2) & (below == 1)
    kept = np.argsort(np.where(padding, 0, -below), axis=1, kind="stable")[:, :width]
    trees = np.arange(len(kept))[:, None]
    return tokens[trees, kept].ravel(), mask[trees[..., None], kept[:, :, None], kept[:, None, :]].ravel()


def read_lengths(batch: Any) -> None:
    """Set the lengths of *batch* on the host if the scheduler has not; waits for the previous round."""
    if batch.seq_lens_cpu is None:
        batch.seq_lens_cpu = batch.seq_lens.cpu()
        batch.seq_lens_sum = int(batch.seq_lens_cpu.sum())
