"""Prompts to record, each with its category."""

from __future__ import annotations

import gzip
import json
import zlib
from collections import defaultdict
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

MT_BENCH = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
"""Kinds of MT-bench question, which Spec-Bench counts as one category."""


@dataclass(frozen=True)
class Prompt:
    category: str
    text: str


def load(path: Path) -> list[Prompt]:
    """Read prompts, alternating between the categories, so that the first ones represent all.

    A ``.jsonl`` has a `category` and `turns` in each line, as Spec-Bench (the first turn is taken); a ``.json`` maps
    categories to lists of prompts; either may be a ``.gz``. Raises ValueError, a single line, for anything else.
    """
    try:
        text = text_of(path)
        if ".jsonl" in path.suffixes:
            prompts = [_question(json.loads(line)) for line in text.splitlines()]
        else:
            prompts = [Prompt(category, str(one)) for category, several in json.loads(text).items() for one in several]
    except (OSError, EOFError, zlib.error, ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: {type(error).__name__} {error}; expected questions as in Spec-Bench") from error
    grouped = defaultdict(list)
    for prompt in prompts:
        grouped[prompt.category].append(prompt)
    return [prompt for prompt in chain.from_iterable(zip_longest(*grouped.values())) if prompt is not None]


def as_chat(tokenizer: Any, text: str) -> list[int]:
    """Return the token ids of a user's message in the tokenizer's chat template, up to the start of the answer."""
    turn = [{"role": "user", "content": text}]
    return list(tokenizer.apply_chat_template(turn, add_generation_prompt=True, return_dict=False))


def text_of(path: Path) -> str:
    """Return a file's text, unpacked if ``.gz``. Raises OSError; EOFError or zlib.error if it is damaged."""
    raw = path.read_bytes()
    return (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8")


def _question(line: dict) -> Prompt:
    category = line["category"]
    return Prompt("mt_bench" if category in MT_BENCH else category, line["turns"][0])
