"""The training of the tiny pair: its text, its losses, and its evaluation, compared with a literal drafting loop."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from sglang_adaptive.lab.cpu_engine import models
from train import checkpoint, data, evaluate, teach
from train.data import Share
from train.model import ModelSize
from train.optimise import Recipe

TINY = ModelSize(hidden=16, heads=2, kv_heads=1, ffn=16)
FEW_STEPS = Recipe(steps=12, matrix_rate=0.02, batch=(4, 64), long_batch=(4, 64), warm_up=2)
"""For a draft of the shipped size, whose optimizer takes most of a step; at rates of 0 no loss falls by 10%."""


def losses_of(output: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"loss ([\d.]+)", output)]


def test_target_learns_the_same_way_twice(capsys, monkeypatch):
    monkeypatch.setattr(teach, "TARGET_CORPUS", (Share("easy", 1.0),))
    recipe = Recipe(steps=26, matrix_rate=0.02, batch=(2, 48), long_batch=(1, 64), warm_up=2)
    one, other = (teach.train_target(TINY, recipe, seed=5) for _ in range(2))
    first, last, *again = losses_of(capsys.readouterr().out)
    assert last < first - 0.8 and again == [first, last]
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


@pytest.fixture
def target():
    return checkpoint.load_target(Path(models.target_path()))


@pytest.mark.parametrize("train", [teach.train_draft, teach.train_block_draft])
def test_a_draft_learns_and_leaves_the_target_alone(train, target, capsys):
    before = [weight.clone() for weight in target.parameters()]
    train(target, FEW_STEPS, seed=5)
    first, last = losses_of(capsys.readouterr().out)
    assert last < 0.7 * first
    assert all(torch.equal(a, b) for a, b in zip(before, target.parameters(), strict=True))


@pytest.mark.parametrize(
    ("steps", "expected"), [(0, [1, 1, 1, 1, 1, 1]), (1, [2, 1, 2, 1]), (3, [3, 2, 1]), (7, [3, 2, 1])]
)
def test_rounds_advance_by_what_was_accepted(steps, expected):
    #          anchor 0  1  2  3  4  5  6  7
    correct_drafts = [9, 9, 2, 1, 0, 1, 0, 0]
    assert evaluate.rounds(correct_drafts, prompt=3, steps=steps) == expected


@pytest.mark.parametrize("family", data.FAMILIES)
def test_evaluation_counts_what_a_literal_drafting_loop_counts(family, target):
    draft = checkpoint.load_draft(Path(models.draft_path()))
    steps, new_tokens = 5, 24
    prompt = models.prompts(family)[0].encode()

    def drafts_after(ids: list[int]) -> list[int]:
        """Draft from the draft's own tokens."""
        drafts: list[int] = []
        features = target(torch.tensor([ids]))[1]
        for step in range(steps):
            embeds = target.model.embed_tokens(torch.tensor([[*ids, *drafts]]))
            padded = torch.cat([features, torch.zeros(1, step, features.shape[-1])], dim=1)
            drafts.append(int(draft.unroll(embeds, padded, step + 1)[step][0, len(ids) - 2].argmax()))
        return drafts

    writings = evaluate.write(target, [prompt], new_tokens)
    (computed,) = evaluate.accept_lengths(target, draft, writings, [steps])[steps]
    assert computed == literal_rounds(target, drafts_after, list(prompt), steps, new_tokens)


@pytest.mark.parametrize("steps", [3, 15])
def test_evaluation_counts_what_a_literal_loop_of_blocks_counts(steps, target):
    draft = checkpoint.load_block_draft(Path(models.block_draft_path()))
    prompt, new_tokens = models.prompts("easy")[0].encode(), 60

    def drafts_after(ids: list[int]) -> list[int]:
        """Draft a block after the last token from the features before it."""
        known, last = torch.tensor([ids]), len(ids) - 1
        logits = draft.logits(target, known, target(known[:, :-1])[1], torch.tensor([last]), steps + 1)
        return logits[0, 0].argmax(dim=-1).tolist()

    writings = evaluate.write(target, [prompt], new_tokens)
    (computed,) = evaluate.accept_lengths_of_blocks(target, draft, writings, [steps])[steps]
    assert computed == literal_rounds(target, drafts_after, list(prompt), steps, new_tokens - 1)


@torch.no_grad()
def literal_rounds(target, drafts_after, ids: list[int], steps: int, new_tokens: int) -> list[int]:
    """Draft, verify with the target, append, repeat; return the tokens of each round."""
    end, lengths = len(ids) + new_tokens, []
    ids = [*ids, next_token(target, ids)]
    # Like the evaluation, skip rounds whose last draft would lie past the end.
    while len(ids) - 2 < end - steps:
        drafts = drafts_after(ids)
        accepted = 0
        while accepted < len(drafts) and drafts[accepted] == next_token(target, [*ids, *drafts[:accepted]]):
            accepted += 1
        ids = [*ids, *drafts[:accepted]]
        ids.append(next_token(target, ids))
        lengths.append(accepted + 1)
    return lengths


def next_token(target, ids: list[int]) -> int:
    return int(target(torch.tensor([ids]))[0][0, -1].argmax())
