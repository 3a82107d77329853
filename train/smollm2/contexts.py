"""Parts of questions: openings, and text written by the model, about passages and to translate."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

OPENINGS = (
    *("Translate this German sentence into English:", "Translate from German to English:\n"),
    *("Put this French sentence into English:", "What does this Spanish sentence mean in English?\n"),
    *("How do you say in French", "Translate into German:\n", "Write in Spanish:"),
    *(
        "Write a Python function that",
        "Write a function in JavaScript",
        "Fix the bug in this code:\n",
        "What does this",
    ),
    *("Complete this Python function:\n\ndef ", "Write an SQL query", "Explain this code:\n\n"),
    *("Solve:", "If a train", "A shop sells", "How many", "What is the sum of", "Calculate", "Prove that", "Anna has"),
    *("Summarize this article:\n\n", "Give the main points of this text:\n\n", "Read this report and sum it up:\n\n"),
    *("Who was", "When did", "Where is", "Which", "Why do", "What is the difference between", "Name three"),
    *("Write a story about", "Write a poem about", "Write an email to", "Write a blog post", "Describe"),
    *("You are", "Pretend to be", "Imagine that", "Act as", "Let us play"),
    *("Extract", "List all", "Put the following into a table:\n", "Classify", "Which of these"),
    *("Explain how", "Explain why", "How does", "What would happen if", "Compare", "What are the advantages of"),
    *("Correct the grammar:\n", "Rewrite this sentence", "Make this text shorter:\n\n", "Give me ideas for"),
)
"""Openings of some questions: the model continues from there, and so asks about more than on its own."""

LANGUAGES = ("German", "French", "Spanish", "Italian", "Portuguese", "Dutch")

INTO = (
    "Translate into {language}:\n{text}",
    "How would you say this in {language}? {text}",
    "{language}, please: {text}",
)
"""Requests to translate an English sentence; `BACK` then asks about their answers."""

BACK = (
    "Translate from {language} to English: {text}",
    "Put this {language} text into English.\n\n{text}",
    "{text}\n\nWhat does this mean in English?",
)

ABOUT_TEXT = (
    "Summarize this text:\n\n{text}",
    "{text}\n\nSum this up in three sentences.",
    "What are the main points of the following?\n\n{text}",
    "Correct the spelling of this text and repeat it:\n\n{text}",
    "Rewrite this in simpler words:\n\n{text}",
    "Make a list of the most important facts.\n\n{text}",
    "{text}\n\nTL;DR:",
)

ABOUT_PASSAGES = (
    "Here are some passages.\n\n{text}\n\nUse them to answer: {question}",
    "{question}\n\nAnswer from these notes only:\n\n{text}",
    "Read the documents and reply to the question.\n\n{text}\n\nQuestion: {question}\nAnswer:",
)

MOST_PASSAGES = 5
SENTENCE_LETTERS = (20, 300)
"""Shortest and longest sentence to translate."""


@dataclass(frozen=True)
class Passage:
    """A question and the model's answer."""

    question: str
    text: str


def about(passages: Sequence[Passage], count: int, rng: random.Random) -> list[str]:
    """Return *count* questions: half about one text of several passages, half to be answered from one of them."""
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
    """A request to translate, and the language of its answer."""

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
    """Return requests to translate *answers*, those to *asked*, back into English."""
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
