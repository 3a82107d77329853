"""The doctor says where no temperature applies: SGLang has kernels that verify sampled requests only for CUDA."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from sglang_adaptive.sglang_plugin.launch.line import greedy_verify


@pytest.mark.parametrize(
    ("hip", "algorithm", "rejection", "exact", "told"),
    [
        ("7.2", "EAGLE3", False, False, True),
        ("7.2", "NGRAM", False, False, True),
        ("7.2", "EAGLE3", False, True, False),
        ("7.2", "EAGLE", True, False, False),
        ("7.2", "DFLASH", False, False, False),
        ("7.2", None, False, False, False),
        (None, "EAGLE3", False, False, False),
    ],
)
def test_note(
    hip: str | None, algorithm: str | None, rejection: bool, exact: bool, told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.version, "hip", hip)
    words = greedy_verify(
        SimpleNamespace(speculative_algorithm=algorithm, speculative_use_rejection_sampling=rejection), exact
    )
    assert (words is not None) is told and (words is None or "no temperature applies" in words)
