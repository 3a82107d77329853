"""What a zero-step round of NGRAM verifies: the last token that the round before accepted, wherever it stands."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from sglang_adaptive.sglang_plugin.workers.ngram_roots import _last_tokens


def test_the_last_accepted_token_of_rounds_of_different_widths() -> None:
    accepted = torch.tensor([[5, 0, 0, 0], [6, 7, 8, 0], [9, 10, 11, 12]], dtype=torch.int32)
    handed_over = SimpleNamespace(accept_tokens=accepted.flatten(), accept_lens=torch.tensor([1, 3, 4]).int())
    assert _last_tokens(handed_over).tolist() == [5, 8, 12]
