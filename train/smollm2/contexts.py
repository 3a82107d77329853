"""Questions put together from text that the model wrote: about passages, and to translate."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from train.smollm2.openings import ABOUT_PASSAGES, ABOUT_TEXT, BACK, INTO, LANGUAGES

MOST_PASSAGES = 5
SENTENCE_LETTERS = (20, 300)
"""Shortest and longest sentence that is given to translate."""


@dataclass(frozen=True)
class Passage:
    """A question and what the model said to it."""

    question: str
    text: str


def about(passages: Sequence[Passage], count: int, rng: random.Random) -> list[str]:
    """Return *count* questions, half about one text of several passages, half to be answered from one among them."""
    made = []
    for index in range(count):
        several = rng.sample(passages, min(len(passages), rng.randint(1, MOST_PASSAGES)))
        if index % 2:
            made.append(rng.choice(ABOUT_TEXT).format(text="\n\n".join(one.text for one in several)))
        else:
            text = "\n\n".join(f"[{number}] {one.text}" for number, one in enumerate(several, 1))
            question = rng.choice(several).question
            made.append(rng.choice(ABOUT_PASSAGES).format(text=text, question=question))
    return made


@dataclass(frozen=True)
class Translation:
    """A request to translate, and the language that its answer is in."""

    request: str
    language: str


def into(passages: Sequence[Passage], count: int, rng: random.Random) -> list[Translation]:
    """Return up to *count* requests to translate sentences of *passages*."""
    sentences = sorted({sentence for passage in passages for sentence in sentences_of(passage.text)})
    made = []
    for sentence in rng.sample(sentences, min(count, len(sentences))):
        language = rng.choice(LANGUAGES)
        made.append(Translation(rng.choice(INTO).format(language=language, text=sentence), language))
    return made


def back(answers: Sequence[str], asked: Sequence[Translation], rng: random.Random) -> list[str]:
    """Return requests to put *answers*, those to *asked*, back into English."""
    return [
        rng.choice(BACK).format(language=one.language, text=answer.strip())
        for answer, one in zip(answers, asked, strict=True)
        if answer.strip()
    ]


def sentences_of(text: str) -> list[str]:
    """Return the sentences of *text* that are neither too short nor too long."""
    fewest, most = SENTENCE_LETTERS
    parts = (part.strip() for part in re.split(r"(?<=[.!?])\s+|\n+", text))
    return [part for part in parts if fewest <= len(part) <= most]
