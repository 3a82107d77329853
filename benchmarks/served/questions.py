"""Spec-Bench's questions as token ids, through the model's own chat template."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from benchmarks.traces import prompts

SOURCE = Path(__file__).parents[1] / "traces" / "spec_bench" / "question.jsonl"


@dataclass(frozen=True)
class Question:
    category: str
    ids: tuple[int, ...]


def questions(model: Path, kept: Path) -> list[Question]:
    """Return all 480, categories in turn; written to *kept* the first time, because a tokenizer loads slowly."""
    if not kept.exists():
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(str(model))
        found = []
        for prompt in prompts.load(SOURCE):
            message = [{"role": "user", "content": prompt.text}]
            text = tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
            found.append([prompt.category, tokenizer(text, add_special_tokens=False)["input_ids"]])
        kept.write_text(json.dumps(found))
    return [Question(category, tuple(ids)) for category, ids in json.loads(kept.read_text())]


def block(number: int, size: int, total: int) -> list[int]:
    """Return which of *total* questions the *number*-th block of *size* holds; blocks go round and round."""
    return [(number * size + place) % total for place in range(size)]
