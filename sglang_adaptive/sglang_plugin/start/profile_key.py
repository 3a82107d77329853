"""The key of this server's cost profile: the setup for which its round times hold."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from sglang_adaptive.policy.profile import ProfileKey
from sglang_adaptive.provenance import cpu_model

_PACKAGES = ("sglang", "sglang-adaptive", "torch", "triton", "sglang-kernel", "flashinfer-python")
"""Packages that run inside a round; a new version may change its time."""


@cache
def profile_key() -> ProfileKey:
    """Return the key of the server whose scheduler this process is."""
    from sglang.srt.arg_groups.overrides import resolving_view
    from sglang.srt.runtime_context import get_context

    cfg = resolving_view(get_context().server_args)
    return ProfileKey(
        target_model=_model(cfg.model_path),
        draft_model=_draft(cfg),
        gpu_name=_device_name(str(cfg.device)),
        gpu_count=cfg.tp_size * cfg.pp_size,
        tp_size=cfg.tp_size,
        attention_backend=_attention(cfg),
        dtypes={
            "model": str(cfg.dtype),
            "kv_cache": str(cfg.kv_cache_dtype),
            "quantization": str(cfg.quantization),
        },
        versions=dict(_versions()),
    )


def _draft(cfg: Any) -> str:
    """Name the draft: a model, the target's own layers, or NGRAM; of multi-layer EAGLE also how many layers draft."""
    from sglang.srt.runtime_context import get_spec

    if cfg.speculative_algorithm == "NGRAM":
        return "NGRAM"
    name, spec = _model(cfg.speculative_draft_model_path or cfg.model_path), get_spec()
    return f"{name}, {spec.speculative_num_steps} layers" if spec.enable_multi_layer_eagle else name


def _attention(cfg: Any) -> str:
    """Name the attention backend, and with attention DP how many ranks it has and what exchanges tokens for experts."""
    ranks, name = cfg.attn_dp_size, str(cfg.attention_backend)
    return name if ranks == 1 else f"{name}, attention DP {ranks}, experts over {cfg.moe_a2a_backend}"


def _model(path: str) -> str:
    """Name a model without its folder; a local one with a digest of its config, because names repeat."""
    folder = Path(path)
    if not folder.is_dir():
        return path
    config = folder / "config.json"
    digest = hashlib.sha256(config.read_bytes()).hexdigest()[:8] if config.is_file() else "no-config"
    return f"{folder.resolve().name}@{digest}"


def _device_name(device: str) -> str:
    if device.startswith("cuda"):
        import torch

        return str(torch.cuda.get_device_name())
    return f"{device}: {cpu_model()}" if device.startswith("cpu") else device


def _versions() -> Iterator[tuple[str, str]]:
    for name in _PACKAGES:
        try:
            yield name, metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
