"""What a zero-step round of NGRAM verifies."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from sglang_adaptive.sglang_plugin.workers.ngram_inputs import last_tokens, tokens_at_most


def test_the_last_accepted_token_of_rounds_of_different_widths() -> None:
    accepted = torch.tensor([[5, 0, 0, 0], [6, 7, 8, 0], [9, 10, 11, 12]], dtype=torch.int32)
    handed_over = SimpleNamespace(accept_tokens=accepted.flatten(), accept_lens=torch.tensor([1, 3, 4]).int())
    assert last_tokens(handed_over).tolist() == [5, 8, 12]


def test_a_mask_is_never_too_short() -> None:
    slots = [SimpleNamespace(kv=SimpleNamespace(kv_allocated_len=slots)) for slots in (96, 4000)]
    batch = SimpleNamespace(reqs=slots, seq_lens_cpu=torch.tensor([80, 1000]))
    assert tokens_at_most(batch, context_len=1024) == 1080
    batch.seq_lens_cpu = None
    assert tokens_at_most(batch, context_len=1024) == 96 + 1024
