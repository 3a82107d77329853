"""The target as a writer of questions and answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from benchmarks.traces.llama import Llama
from benchmarks.traces.record import batches
from benchmarks.traces.recorder import text_ends
from benchmarks.traces.writing import write
from train.smollm2.store import Ids

MARK = "@@@"


@dataclass(frozen=True)
class Tags:
    """Token ids that the chat template puts before and after a user's message."""

    before: tuple[int, ...]
    after: tuple[int, ...]

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase) -> Tags:
        turn = [{"role": "user", "content": MARK}]
        text = tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
        before, _, after = text.partition(MARK)
        return cls(*(tuple(tokenizer.encode(part, add_special_tokens=False)) for part in (before, after)))

    def around(self, ids: Sequence[int]) -> Ids:
        return [*self.before, *ids, *self.after]

    def inside(self, question: Sequence[int]) -> Ids:
        """Return the user's message in a whole *question*."""
        return list(question[len(self.before) : len(question) - len(self.after)])


@dataclass(frozen=True)
class Said:
    """The text, without the token that ends it; *ended* says whether there was one."""

    ids: Ids
    ended: int | None


class Speaker:
    """The target on one device: bfloat16 on a GPU, float32 on a CPU. *batch_tokens* limits a batch."""

    def __init__(self, folder: Path, device: torch.device, seed: int, batch_tokens: int) -> None:
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        self.folder, self.device, self.batch_tokens = folder, device, batch_tokens
        self.target = Llama(folder, None, device, dtype)
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.tags = Tags.of(self.tokenizer)
        self.ends = text_ends(folder, self.tokenizer.eos_token_id) | frozenset(self.tokenizer.all_special_ids)
        self.generator = torch.Generator(device).manual_seed(seed)

    def reseed(self, seed: int) -> None:
        """Restart the draws, so that they do not depend on draws in another call."""
        self.generator.manual_seed(seed)

    def say(self, prompts: Sequence[Ids], new_tokens: int, temperature: float = 0.0, floor: float = 0.0) -> list[Said]:
        """Continue *prompts*, those of similar length together."""
        found: dict[int, Said] = {}
        for batch in batches([len(one) + new_tokens for one in prompts], self.batch_tokens):
            several = [prompts[index] for index in batch]
            written = write(self.target, several, new_tokens, self.ends, temperature, self.generator, floor)
            for index, writing in zip(batch, written, strict=True):
                output = writing.ids[writing.prompt :].tolist()
                found[index] = Said(output[:-1], output[-1]) if writing.ended else Said(output, None)
        return [found[index] for index in range(len(prompts))]

    def texts(self, several: Sequence[Ids]) -> list[str]:
        return self.tokenizer.batch_decode(several, skip_special_tokens=True)

    def ids(self, texts: Sequence[str]) -> list[Ids]:
        return self.tokenizer(list(texts), add_special_tokens=False)["input_ids"] if texts else []
