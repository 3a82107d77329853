"""The texts for lookups, on the host."""

from __future__ import annotations

import random

import numpy as np
import torch

from benchmarks.traces.lookup import Text
from sglang_adaptive.policy.observation import DRAFTS
from sglang_adaptive.sglang_plugin.stages.lookups.texts import ABSENT, Texts, longest_match
from tests.lookup_kernel_checks import check

VOCABULARY = 50


def follow(texts: Texts, slot: int, known: int, new: list[int], width: int) -> list[int]:
    tokens = torch.tensor([*new, *[0] * (width - len(new))], dtype=torch.int32)
    told = texts.follow(torch.tensor([slot]), torch.tensor([known - 1]), tokens, torch.tensor([len(new)]))
    found: list[int] = told[0].tolist()
    return found


def test_matches_are_those_of_the_definition() -> None:
    draw = random.Random(3)
    for _ in range(200):
        text = [draw.randrange(4) for _ in range(draw.randrange(1, 90))]
        text += text[draw.randrange(len(text)) :]
        expected = Text([*text, 1], len(text) - 1).at(len(text) - 1).match
        assert longest_match(np.array(text))[0] == expected


def test_rounds_look_up_what_the_definition_says() -> None:
    assert check("cpu", by_kernels=False) > 50


def test_only_tokens_of_the_model_are_drafted() -> None:
    texts = Texts(100, VOCABULARY, "cpu")
    prompt = [1, 2, 3, 900_000, -5]
    texts.write(0, 0, np.array(prompt), comes=True)
    told = follow(texts, 0, len(prompt) + 1, [1, 2, 3], 4)  # the first token after the prompt is not known
    assert told[2] == 3
    drafts = texts.drafts(torch.tensor([0]), DRAFTS - 1)
    assert drafts.min() >= 0 and drafts.max() < VOCABULARY


def test_another_request_finds_nothing_of_the_one_before() -> None:
    texts = Texts(200, VOCABULARY, "cpu")
    texts.write(1, 0, np.arange(40), comes=True)
    assert follow(texts, 1, 40, [5, 6, 7], 4)[2] == 3
    texts.write(1, 0, np.array([5, 6, 7]), comes=True)
    assert texts.matches[1].tolist() == [0, 0]
    assert texts._texts[1, 3 : 3 + 2 * DRAFTS].eq(ABSENT).all()
    assert follow(texts, 1, 3, [8], 1) == [0, 0, 0, 0, 0]


def test_a_text_may_end_with_its_row() -> None:
    texts = Texts(20, VOCABULARY, "cpu")
    room = texts._texts.shape[1]
    texts.write(0, 0, np.arange(room + 5) % VOCABULARY, comes=True)
    assert follow(texts, 0, room - 1, [1, 2, 3, 4], 4)[2] >= 0
