"""What the doctor says of a launch line: a faster attention backend, and where no temperature applies."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sglang_adaptive.sglang_plugin.launch.line import faster_backend as hint
from sglang_adaptive.sglang_plugin.launch.line import greedy_verify

AMPERE, ADA, HOPPER, BLACKWELL = (8, 0), (8, 9), (9, 0), (10, 0)


@pytest.mark.parametrize(
    ("capability", "latent", "backend", "told"),
    [
        (AMPERE, False, "flashinfer", True),
        (ADA, False, "flashinfer", True),
        (HOPPER, True, "flashinfer", True),
        (HOPPER, False, "triton", True),
        (HOPPER, False, "fa3", False),
        (AMPERE, True, "triton", False),
        (BLACKWELL, False, "flashinfer", False),
        (None, False, "flashinfer", False),
    ],
)
def test_hint(
    capability: Any, latent: bool, backend: str, told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: capability is not None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    config = {"model_type": "llama"} | ({"kv_lora_rank": 512} if latent else {})
    (tmp_path / "config.json").write_text(json.dumps(config))
    words = hint(SimpleNamespace(model_path=str(tmp_path), speculative_algorithm="eagle3"), backend)
    assert (words is not None and "--attention-backend fa3" in words) is told
    assert hint(SimpleNamespace(model_path=str(tmp_path), speculative_algorithm="NGRAM"), backend) is None


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
