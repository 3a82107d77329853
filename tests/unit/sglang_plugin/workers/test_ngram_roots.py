"""What a zero-step round of NGRAM verifies, and that SGLang prepares it where this package fails."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
import torch

from sglang_adaptive.sglang_plugin.workers import ngram_roots


def test_the_last_accepted_token_of_rounds_of_different_widths() -> None:
    accepted = torch.tensor([[5, 0, 0, 0], [6, 7, 8, 0], [9, 10, 11, 12]], dtype=torch.int32)
    handed_over = SimpleNamespace(accept_tokens=accepted.flatten(), accept_lens=torch.tensor([1, 3, 4]).int())
    assert ngram_roots.last_tokens(handed_over).tolist() == [5, 8, 12]


def test_an_error_leaves_the_round_to_sglang(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(ngram_roots, "_fallback", ngram_roots.Fallback("on the host from now on"))
    monkeypatch.setattr(ngram_roots, "_prepare", lambda worker, batch: batch["missing"])
    with caplog.at_level(logging.ERROR):
        assert [ngram_roots.prepared(None, {}) for _ in range(2)] == [False, False]
    assert [record.message for record in caplog.records] == ["on the host from now on"]


def test_a_mask_is_never_too_short() -> None:
    slots = [SimpleNamespace(kv=SimpleNamespace(kv_allocated_len=slots)) for slots in (96, 4000)]
    batch = SimpleNamespace(reqs=slots, seq_lens_cpu=torch.tensor([80, 1000]))
    assert ngram_roots.tokens_at_most(batch, context_len=1024) == 1080
    batch.seq_lens_cpu = None
    assert ngram_roots.tokens_at_most(batch, context_len=1024) == 96 + 1024
