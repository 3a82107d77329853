"""Tensors of a model folder, taken by name; the recorder does not support models with tensors left over."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch
from torch import Tensor
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from sglang_adaptive.lab.models.folders import PACKED, ModelError, read_weights


class Weights:
    """The tensors of a folder's ``*.safetensors``, or of a packed draft, on *device* in *dtype*."""

    def __init__(self, folder: Path, device: torch.device, dtype: torch.dtype) -> None:
        self.folder = folder
        files = _files(folder)
        if not files:
            raise ModelError(f"{folder}: has no *.safetensors; expected a model folder")
        self._tensors: dict[str, Tensor] = {}
        for file in files:
            for name, tensor in read_weights(file).items():
                self._tensors[name] = tensor.to(device, dtype if tensor.is_floating_point() else None)

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def take(self, *names: str) -> Tensor:
        """Return the tensor *names*, several stacked; a name without suffix means its weight."""
        return torch.cat([self._take(name) for name in names]) if len(names) > 1 else self._take(names[0])

    def _take(self, name: str) -> Tensor:
        full = name if name in self._tensors else f"{name}.weight"
        if full not in self._tensors:
            raise ModelError(f"{self.folder}: no tensor {full}; expected a Llama, or an EAGLE-3 draft of its shape")
        return self._tensors.pop(full)

    def finish(self, ignored: tuple[str, ...] = ()) -> None:
        """Raise `ModelError` for a tensor that was not taken."""
        left = [name for name in self._tensors if not name.endswith(ignored)]
        if left:
            raise ModelError(f"{self.folder}: tensor {left[0]} is not supported; expected only those of a plain Llama")


def fingerprint(folder: Path) -> str:
    """Return the folder as given (an absolute one by its name) and 12 digits of its weights' SHA-256."""
    digest = hashlib.sha256()
    for file in _files(folder):
        with file.open("rb") as opened:
            while block := opened.read(1 << 20):
                digest.update(block)
    return f"{folder.name if folder.is_absolute() else folder} (weights {digest.hexdigest()[:12]})"


def _files(folder: Path) -> list[Path]:
    return list(folder.glob(PACKED)) or sorted(folder.glob("*.safetensors"))


def config_of(folder: Path) -> LlamaConfig:
    """Return the folder's configuration. Raises `ModelError` if it is not a Llama's."""
    try:
        config = LlamaConfig.from_pretrained(folder)
    except (OSError, ValueError) as error:
        raise ModelError(f"{folder}: {str(error).splitlines()[0]}") from error
    if config.model_type != "llama":
        raise ModelError(f"{folder}/config.json: model_type {config.model_type!r}; expected 'llama'")
    return config


def rotary(config: LlamaConfig, positions: int, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return cosine and sine, each [positions, head_dim]."""
    table = LlamaRotaryEmbedding(config).to(device)
    cos, sin = table(torch.zeros(1, device=device, dtype=dtype), torch.arange(positions, device=device)[None])
    return cos[0], sin[0]
