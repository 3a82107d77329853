"""Measure tokens per round of an EAGLE-3 draft by what it attends to, on a target's own long texts, in plain PyTorch.

    python -m benchmarks.draft_reach [--pair smollm2] [--lengths 1000,3000,6000] [--device cuda] [--json F]

Runs SmolLM2 and its draft on the documents of ``benchmarks.long_contexts``, or the tiny pair on its three kinds of
text. Sinks are moved to the positions right before the window, left in place, or moved farther away, as in a longer
request.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from benchmarks.harness.results import command_parser, origin, write
from benchmarks.harness.start import ints, smollm2_folders
from benchmarks.long_contexts import TRAINED, documents
from benchmarks.traces.eagle3 import Eagle3
from benchmarks.traces.llama import rotate
from benchmarks.traces.recorder import Recorder
from benchmarks.traces.replay import rounds
from benchmarks.traces.weights import config_of
from benchmarks.traces.writing import Writing
from benchmarks.traces.writing import write as written
from sglang_adaptive.lab.cpu_engine import models
from sglang_adaptive.lab.traces import CHAIN
from sglang_adaptive.policy.config import SINKS
from train import data

DEPTHS = (3, 7)
BATCH = 4
"""Documents that are processed together."""


@dataclass(frozen=True)
class Reach:
    """What the draft attends to: everything, or *window* tokens and *sinks*."""

    name: str
    window: int | None = None
    sinks: int = SINKS
    away: int | None = None
    """Tokens by which sinks are farther away than in the text; None if they are right before the window."""


def reaches(trained: int) -> Iterator[Reach]:
    """Yield the reaches to compare for a draft that was trained on *trained* tokens."""
    half = trained // 2
    yield Reach("everything")
    for window in (trained // 8, trained // 4, half, trained * 3 // 4):
        yield Reach(f"{window}", window, 0)
        yield Reach(f"{window} and sinks", window)
    for sinks in (4, 16, 256):
        yield Reach(f"{half} and {sinks} sinks", half, sinks)
    for away in (0, 30_000, 120_000):
        yield Reach(f"{half} and sinks {away} tokens farther away", half, away=away)


@dataclass(frozen=True)
class Pair:
    """A target with its draft, as folders, and texts to continue."""

    target: Path
    draft: Path
    trained: int
    """Tokens of the longest document that the draft was trained on."""
    asked: Callable[[Any, int, int], list[list[int]]]
    """Returns that many prompts of that many tokens, by the tokenizer."""


def tiny_pages(tokenizer: Any, count: int, length: int) -> list[list[int]]:
    """Return *count* pages of *length* bytes, by turns of kind, on which the tiny pair was not trained."""
    chance = random.Random(0)
    kinds = [data.FAMILIES[number % len(data.FAMILIES)] for number in range(count)]
    pages = [data.document(kind, chance, length, held_out=True).text for kind in kinds]
    return [tokenizer(page.decode())["input_ids"][:length] for page in pages]


def pair_of(name: str, folder: Path) -> Pair:
    """Return a pair by its *name*; SmolLM2's models may be below *folder*."""
    if name == "tiny":
        return Pair(Path(models.target_path()), Path(models.draft_path()), 1024, tiny_pages)
    return Pair(*smollm2_folders(folder), TRAINED, documents)


class Reaching(Eagle3):
    """The draft, each chain of which sees what `reach` allows."""

    reach = Reach("everything")
    theta = 10000.0

    def _attend(
        self, q: Tensor, keys: Tensor, values: Tensor, own: list[tuple[Tensor, Tensor]], later: Tensor
    ) -> Tensor:
        reach, (chains, rows) = self.reach, later.shape
        if reach.window is None:
            return super()._attend(q, keys, values, own, later)
        columns = torch.arange(rows, device=later.device)
        # A chain knows the rows up to its own row, which is part of the window.
        lengths = torch.arange(rows - chains, rows, device=later.device) + 1
        left = (lengths - reach.window - reach.sinks).clamp(min=0)
        hidden = later | ((columns >= reach.sinks) & (columns < reach.sinks + left[:, None]))
        q = q * self.head_dim**-0.5
        scores = q @ keys[:, None].transpose(-1, -2)
        if reach.sinks and reach.away != 0:
            by = left if reach.away is None else torch.full_like(left, -reach.away)
            turned = self._turned(keys[:, None, : reach.sinks], by)  # [kv heads, chains, sinks, head_dim]
            scores[..., : reach.sinks] = (q[..., None, :] * turned[:, None]).sum(-1)
        every = [scores.masked_fill(hidden, float("-inf"))]
        every += [(q * k[:, None]).sum(-1, keepdim=True) for k, _ in own]
        weights = torch.cat(every, dim=-1).softmax(dim=-1)
        out = weights[..., :rows] @ values[:, None]
        for i, (_, v) in enumerate(own):
            out = out + weights[..., rows + i, None] * v[:, None]
        return out.flatten(0, 1).transpose(0, 1).flatten(1)

    def _turned(self, keys: Tensor, by: Tensor) -> Tensor:
        """Return *keys* [kv heads, 1, sinks, head_dim] rotated by each of *by* [chains] more tokens."""
        exponents = torch.arange(0, self.head_dim, 2, device=keys.device, dtype=torch.float64) / self.head_dim
        angles = by[:, None].double() * self.theta**-exponents
        angles = torch.cat([angles, angles], dim=-1)[None, :, None]
        return rotate(keys, angles.cos().to(keys.dtype), angles.sin().to(keys.dtype))


def main(argv: Sequence[str]) -> int:
    """Print and write the tokens per round of every reach and length."""
    parser = command_parser("draft_reach", __doc__)
    parser.add_argument("--pair", choices=("smollm2", "tiny"), default="smollm2")
    parser.add_argument("--lengths", type=ints, default=[1000, 2000, 3000, 4000, 6000], help="tokens per document")
    parser.add_argument("--documents", type=int, default=16, help="documents per length")
    parser.add_argument("--tokens", type=int, default=160, help="maximum tokens per answer")
    parser.add_argument("--models", type=Path, default=Path("/tmp/m"), help="models folder, which may contain smollm2/")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    given = parser.parse_args(argv)
    pair = pair_of(given.pair, given.models)
    recorder = Recorder(pair.target, pair.draft, given.device, torch.float32, 0.0, 0)
    recorder.draft = draft = Reaching(pair.draft, recorder.device, torch.float32)
    draft.theta = config_of(pair.draft).rope_parameters["rope_theta"]
    cells: list[dict[str, Any]] = []
    for length in given.lengths:
        asked = pair.asked(recorder.tokenizer, given.documents, length)
        texts: list[Writing] = []
        for first in range(0, len(asked), BATCH):
            some = asked[first : first + BATCH]
            texts += written(recorder.target, some, given.tokens + CHAIN, recorder.ends, 0.0, recorder.generator)
        texts = [one for one in texts if len(one.ids) > one.prompt + CHAIN]  # a shorter answer has no complete chain
        for reach in reaches(pair.trained):
            draft.reach = reach
            accepted = [recorder.accepted(one) for one in texts]
            rates = {steps: fmean(taken for one in accepted for taken in rounds(one, steps)) for steps in DEPTHS}
            cells.append({"length": length, "reach": reach.name, "tokens_a_round": rates})
            print(f"{length:6d}  {reach.name:36s} " + "  ".join(f"{rate:.3f}" for rate in rates.values()), flush=True)
        if given.json is not None:
            write(given.json, {"provenance": origin("draft_reach", argv), "documents": given.documents, "cells": cells})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
