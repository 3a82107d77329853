"""From prompts to the rows of a trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from transformers import AutoTokenizer, GenerationConfig

from benchmarks.traces.eagle3 import Eagle3
from benchmarks.traces.files import lookups
from benchmarks.traces.llama import Llama
from benchmarks.traces.prompts import as_chat
from benchmarks.traces.repetition import loop_start
from benchmarks.traces.weights import ModelError
from benchmarks.traces.writing import Writing, write
from sglang_adaptive.lab.traces import CHAIN


@dataclass(frozen=True)
class Recording:
    """The rows of one request, and its text, which traces do not keep."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    """The output."""
    accepted: npt.NDArray[np.uint8]
    loop_start: int
    lookups: npt.NDArray[np.uint8]
    """[positions, 2]: the match before looked-up drafts, and how many of these are right."""


class Recorder:
    """A target and its draft, on one device."""

    def __init__(
        self, target: Path, draft: Path, device: str, dtype: torch.dtype, temperature: float, seed: int
    ) -> None:
        self.device = torch.device(device)
        self.draft = Eagle3(draft, self.device, dtype)
        self.target = Llama(target, self.draft.aux_layers, self.device, dtype)
        if self.draft.fc.shape[1] != len(self.target.captured) * self.target.embedding.shape[1]:
            raise ModelError(f"{draft}: fc takes {self.draft.fc.shape[1]} features, which {target} does not have")
        self.tokenizer = AutoTokenizer.from_pretrained(target)
        self.ends = text_ends(target, self.tokenizer.eos_token_id)
        self.temperature = temperature
        self.generator = torch.Generator(self.device).manual_seed(seed)

    def encode(self, text: str, chat: bool) -> list[int]:
        """Return the token ids of a prompt, by the chat template or unchanged."""
        return as_chat(self.tokenizer, text) if chat else self.tokenizer(text)["input_ids"]

    def record(self, prompts: Sequence[Sequence[int]], positions: int, ignore_eos: bool = False) -> list[Recording]:
        """Return the recordings of *prompts*, generated in one batch, of up to *positions* positions each.

        An output that ends at once has no position.
        """
        ends = frozenset() if ignore_eos else self.ends
        # The last position's chain is judged by the tokens after it.
        written = write(self.target, prompts, positions + CHAIN, ends, self.temperature, self.generator)
        return [self.judged(writing, positions) for writing in written]

    def judged(self, writing: Writing, positions: int) -> Recording:
        """Return the recording of *writing*, of up to *positions* positions."""
        counts = self.accepted(writing)[:positions]
        kept, ids = len(counts), writing.ids.tolist()
        prompt, tokens = tuple(ids[: writing.prompt]), tuple(ids[writing.prompt :])
        looked_up = lookups(ids, writing.prompt, kept)
        return Recording(prompt, tokens, counts, loop_start(tokens, kept), looked_up)

    def accepted(self, writing: Writing) -> npt.NDArray[np.uint8]:
        """Return the drafts accepted at every position that can be judged [A].

        Each position's chain is compared with the output. Nothing is accepted after its end.
        """
        output = writing.ids[writing.prompt :]
        kept = len(output) - 1 if writing.ended else len(output) - CHAIN
        first = writing.prompt - 1  # the row that knows output token 0
        drafts = self.draft.chains(self.target.embedding, writing.ids, writing.features, first, CHAIN)
        padded = torch.cat([output, output.new_full((CHAIN,), -1)])
        truth = padded.unfold(0, CHAIN, 1)[1 : kept + 1]
        right = (drafts[:kept] == truth).long().cumprod(dim=-1).sum(dim=-1)
        return right.cpu().numpy().astype(np.uint8)


def text_ends(target: Path, tokenizer_end: int | None) -> frozenset[int]:
    """Tokens that end a text: the tokenizer's, and those of the folder's generation_config.json or config.json."""
    generation = GenerationConfig.from_pretrained(target, config_file_name=_generation_file(target)).eos_token_id
    several = generation if isinstance(generation, list) else [generation]
    return frozenset(end for end in (*several, tokenizer_end) if end is not None)


def _generation_file(target: Path) -> str:
    own = "generation_config.json"
    return own if (target / own).is_file() else "config.json"
