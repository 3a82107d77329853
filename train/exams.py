"""Held-out prompts, each with the text that the rule writes after it."""

from __future__ import annotations

import random
from dataclasses import dataclass

from train.data import FAMILIES, document


@dataclass(frozen=True)
class Exam:
    """A held-out prompt and what the rule writes after it."""

    prompt: str
    answer: bytes


def held_out_exams(seed: int, count: int, answer_size: int) -> dict[str, list[Exam]]:
    """*count* exams a family; prompts are whole lines, 40 to 300 bytes, of documents kept from training."""
    return {f: [_exam(f, random.Random(f"{seed} {f} {i}"), answer_size) for i in range(count)] for f in FAMILIES}


def _exam(family: str, rng: random.Random, answer_size: int) -> Exam:
    whole = document(family, rng, 300 + answer_size, held_out=True)
    shortest = max(whole.given, 40)
    ends = [i for i in range(shortest, 301) if whole.text[i - 1] == ord("\n")]
    end = rng.choice(ends[:4])
    return Exam(whole.text[:end].decode(), whole.text[end : end + answer_size])
