"""A draft's weights in a quarter of the bytes: integers times a step for each input, Huffman-coded.

`train.smollm2.rounding` chooses the integers. Small ones are the most frequent, so a value takes about 4 bits.
"""

from __future__ import annotations

import shutil
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, load_file, save
from torch import Tensor

from sglang_adaptive.lab.models.folders import PACKED, WEIGHTS, ModelError

_STEP = ".step"


@dataclass(frozen=True)
class Rounded:
    """A matrix as int8 *levels* [out, in] times a float32 *step* [in]."""

    levels: Tensor
    step: Tensor

    def widened(self) -> Tensor:
        """Return the matrix in bfloat16, identical on every machine: each value is rounded once."""
        return (self.levels * self.step).to(torch.bfloat16)


def write_packed(path: Path, tensors: Mapping[str, Tensor | Rounded]) -> None:
    """Write a draft's *tensors* by their names. Raises OSError."""
    kept: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if isinstance(tensor, Rounded):
            # Column by column: the codes follow the spread of each column's numbers.
            kept[name], kept[name + _STEP] = tensor.levels.T.contiguous(), tensor.step
        else:
            kept[name] = tensor
    coder = zlib.compressobj(9, zlib.DEFLATED, zlib.MAX_WBITS, 9, zlib.Z_HUFFMAN_ONLY)
    path.write_bytes(coder.compress(save(kept)) + coder.flush())


def read_draft(folder: Path) -> dict[str, Tensor]:
    """Return the tensors of a draft's *folder*, packed or not, by the names that SGLang loads. Raises ModelError."""
    packed = folder / PACKED
    return read_weights(packed if packed.is_file() else folder / WEIGHTS)


def read_weights(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a file, packed or in SafeTensors' format. Raises ModelError."""
    try:
        if path.name != PACKED:
            return load_file(path)
        kept = load(zlib.decompress(path.read_bytes()))
    except (OSError, zlib.error, SafetensorError) as error:
        raise ModelError(f"{path}: cannot be read ({error})") from error
    tensors = {name: tensor for name, tensor in kept.items() if not name.endswith(_STEP)}
    for name, step in kept.items():
        if name.endswith(_STEP):
            matrix = name.removesuffix(_STEP)
            tensors[matrix] = Rounded(kept[matrix].T.contiguous(), step).widened()
    return tensors


def widen(draft: Path, folder: Path) -> None:
    """Write a *draft*, packed or not, to *folder* in the form that SGLang loads. Raises ModelError and OSError."""
    (folder / WEIGHTS).write_bytes(save(read_draft(draft), metadata={"format": "pt"}))
    shutil.copyfile(draft / "config.json", folder / "config.json")
