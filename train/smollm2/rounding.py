"""Rounds a trained draft to integers with the least effect on its outputs (GPTQ), and packs it."""

from __future__ import annotations

import shutil
import zlib
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor

from benchmarks.traces.eagle3 import Eagle3
from benchmarks.traces.llama import Llama
from sglang_adaptive.lab.models.folders import PACKED, STEP, read_draft
from train.smollm2.plan import STEPS
from train.smollm2.store import Documents

NOISE = 0.02
"""Error of each matrix's output, as a share of that output: half of it takes one more bit per value."""

SAMPLE = 30_000
"""Answer tokens on which the inputs of the draft's matrices are recorded."""

DAMPING = 0.01
"""Share of the inputs' mean square that is added to each of them: a sample says little about the smallest ones."""

LARGEST = 127


@dataclass(frozen=True)
class Rounded:
    """A matrix as int8 *levels* [out, in] times a float32 *step* [in]."""

    levels: Tensor
    step: Tensor

    def widened(self) -> Tensor:
        """Return the matrix in bfloat16, as it is read."""
        return (self.levels * self.step).to(torch.bfloat16)


def write_packed(path: Path, tensors: Mapping[str, Tensor | Rounded]) -> None:
    """Write a draft's *tensors* by their names, Huffman-coded: small levels are frequent, one takes about 4 bits."""
    kept: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if isinstance(tensor, Rounded):
            # Column by column: the codes follow the spread of each column's numbers.
            kept[name], kept[name + STEP] = tensor.levels.T.contiguous(), tensor.step
        else:
            kept[name] = tensor
    coder = zlib.compressobj(9, zlib.DEFLATED, zlib.MAX_WBITS, 9, zlib.Z_HUFFMAN_ONLY)
    path.write_bytes(coder.compress(save(kept)) + coder.flush())


def pack_draft(draft: Path, target: Llama, documents: Documents, folder: Path) -> int:
    """Write the *draft* of *target*, packed, to *folder* with its config; return the bytes of its weights.

    Its own drafts along *documents* determine which errors matter.
    """
    squares = inputs_of(draft, target, documents)
    tensors: dict[str, Tensor | Rounded] = {**read_draft(draft)}
    for name, square in squares.items():
        matrix = tensors[name]
        assert isinstance(matrix, Tensor)
        tensors[name] = rounded(matrix.to(square), square)
    folder.mkdir(parents=True, exist_ok=True)
    write_packed(folder / PACKED, tensors)
    shutil.copyfile(draft / "config.json", folder / "config.json")
    return (folder / PACKED).stat().st_size


def rounded(matrix: Tensor, square: Tensor, noise: float = NOISE) -> Rounded:
    """Round a matrix [out, in] whose inputs have the second moment *square* [in, in], both in float64.

    Columns are rounded one by one. Later columns compensate the effect of each column's error on the outputs, as far as
    their inputs correlate with its own. The more is compensated, the wider a column's step.
    """
    rows, columns = matrix.shape
    square = square + DAMPING * square.diag().mean() * torch.eye(columns, device=square.device)
    after = torch.linalg.cholesky(torch.linalg.inv(square), upper=True)
    output = ((matrix @ square) * matrix).sum()
    # An error distributed evenly between -step/2 and step/2 has the mean square step² / 12.
    step = noise * (12 * output / (rows * columns)).sqrt() * after.diag()
    step = step.maximum(matrix.abs().amax(dim=0) / LARGEST).float()
    left, levels = matrix.clone(), torch.empty(rows, columns, dtype=torch.int8, device=matrix.device)
    for column in range(columns):
        level = (left[:, column] / step[column]).round().clamp(-LARGEST, LARGEST)
        error = (left[:, column] - level * step[column]) / after[column, column]
        left[:, column + 1 :] -= error[:, None] * after[column, column + 1 :]
        levels[:, column] = level.to(torch.int8)
    return Rounded(levels.cpu(), step.cpu())


def inputs_of(draft: Path, target: Llama, documents: Documents) -> dict[str, Tensor]:
    """Return the second moment [in, in], in float64, of each matrix's inputs, by its name in the draft's file."""
    device = target.embedding.device
    watched = Watched(draft, device, target.embedding.dtype)
    tokens = 0
    for index in np.random.default_rng(0).permutation(len(documents)):
        ids = torch.from_numpy(documents[index].astype(np.int64)).to(device)
        prompt = int(documents.prompts[index])
        if tokens >= SAMPLE:
            break
        tokens += len(ids) - prompt
        _, features = target.prefill(ids[None], target.cache(1, len(ids)))
        watched.chains(target.embedding, ids, features[0], prompt - 1, STEPS)
    layer, attention = watched.layer, "midlayer.self_attn"
    matrices = {
        **{"fc.weight": watched.fc, "lm_head.weight": watched.head, f"{attention}.o_proj.weight": layer.o},
        **{f"{attention}.{one}_proj.weight": layer.qkv for one in "qkv"},
        **{f"midlayer.mlp.{one}_proj.weight": layer.gate_up for one in ("gate", "up")},
        "midlayer.mlp.down_proj.weight": layer.down,
    }
    return {name: watched.squares[id(matrix)] for name, matrix in matrices.items()}


class Watched(Eagle3):
    """A draft that sums x xᵀ over the inputs x of each of its matrices."""

    def __init__(self, folder: Path, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(folder, device, dtype)
        self.squares: defaultdict[int, Tensor | float] = defaultdict(float)

    def times(self, x: Tensor, matrix: Tensor) -> Tensor:
        rows = x.flatten(0, -2).float()
        self.squares[id(matrix)] = self.squares[id(matrix)] + (rows.T @ rows).double()
        return super().times(x, matrix)
