"""The shipped model pair: its files, that it loads, and that it serves its purpose."""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from sglang_adaptive.lab.cpu_engine import models
from train import checkpoint, data, report, teach

TARGET, DRAFT, BLOCKS = Path(models.target_path()), Path(models.draft_path()), Path(models.block_draft_path())
EASY_AT_LEAST, HARD_AT_MOST, DEPTH = 4.0, 2.0, 7
WIDER_IS_BETTER = 4.0
"""Minimum accept length of whole blocks on easy text; blocks of half the drafts reach less."""


@pytest.fixture(scope="module")
def pair():
    return checkpoint.load_target(TARGET), checkpoint.load_draft(DRAFT)


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(TARGET)


@given(st.text())
@settings(max_examples=200, deadline=None)
def test_any_text_survives_the_tokenizer_a_byte_a_token(tokenizer, text):
    for special in checkpoint.SPECIAL:
        text = text.replace(special, "")
    ids = tokenizer(text)["input_ids"]
    assert ids == list(text.encode())
    assert tokenizer.decode(ids) == text


def test_hugging_face_computes_what_the_trainer_computes(pair):
    ids = torch.tensor([list(models.prompts("mixed")[0].encode())])
    theirs = AutoModelForCausalLM.from_pretrained(TARGET, dtype=torch.float32)(ids, output_hidden_states=True)
    logits, features = pair[0](ids)
    torch.testing.assert_close(theirs.logits, logits, atol=1e-4, rtol=1e-4)
    wanted = torch.cat([theirs.hidden_states[layer] for layer in (2, 4, 5)], dim=-1)
    torch.testing.assert_close(features, wanted, atol=1e-4, rtol=1e-4)


def test_prompts_are_the_held_out_ones():
    held_out = data.held_out_exams(report.EXAM_SEED, report.EXAMS_A_FAMILY, 0)
    for family in data.FAMILIES:
        prompts = models.prompts(family)
        assert prompts == [exam.prompt for exam in held_out[family]]
        assert len(set(prompts)) == len(prompts) >= 16
        assert all(40 <= len(prompt.encode()) <= 300 for prompt in prompts)


def test_training_text_never_opens_as_a_prompt_does():
    def opening(family: str, text: str) -> str:
        """Return what identifies a document: its first record without the number, or its first line of entries."""
        lines = text.split("\n")
        return lines[1] if family != "easy" else "".join(c for c in lines[0] if not c.isdigit())

    rng = random.Random(0)
    for corpus in (teach.TARGET_CORPUS, teach.DRAFT_CORPUS):
        for share in corpus:
            held_out = {opening(share.family, prompt) for prompt in models.prompts(share.family)}
            trained = {
                opening(share.family, data.document(share.family, rng, 120, ruled=share.ruled).text.decode())
                for _ in range(2000)
            }
            assert not held_out & trained


def test_evaluation_is_of_these_weights_and_within_bounds():
    evaluation = json.loads((models.FOLDER / "evaluation.json").read_text())
    for name, folder in (("target", TARGET), ("draft", DRAFT), ("block_draft", BLOCKS)):
        assert evaluation["sha256"][name] == hashlib.sha256((folder / checkpoint.WEIGHTS).read_bytes()).hexdigest()
    assert {*evaluation["families"]} == {*models.FAMILIES}
    accepted = {name: family["accept_length"][str(DEPTH)] for name, family in evaluation["families"].items()}
    assert accepted["easy"] >= EASY_AT_LEAST
    assert accepted["hard"] <= HARD_AT_MOST
    assert accepted["hard"] < accepted["mixed"] < accepted["easy"]
    blocks = {name: family["accept_length_of_blocks"] for name, family in evaluation["families"].items()}
    half, whole = (str(steps) for steps in report.BLOCK_DEPTHS[-2:])
    assert blocks["easy"][whole] >= WIDER_IS_BETTER and blocks["easy"][whole] > blocks["easy"][half]
    assert blocks["hard"][whole] <= HARD_AT_MOST
