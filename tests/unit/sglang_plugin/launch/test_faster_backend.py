"""The doctor names the faster attention backend if the GPU supports it."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from sglang_adaptive.sglang_plugin.launch.line import faster_backend as hint

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
    capability: tuple[int, int] | None,
    latent: bool,
    backend: str,
    told: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: capability is not None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "llama"} | ({"kv_lora_rank": 512} if latent else {}))
    )
    words = hint(SimpleNamespace(model_path=str(tmp_path), speculative_algorithm="eagle3"), backend)
    assert (words is not None and "--attention-backend fa3" in words) is told
    assert hint(SimpleNamespace(model_path=str(tmp_path), speculative_algorithm="NGRAM"), backend) is None
