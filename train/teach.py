"""The two trainings: first the target on text, then the draft on the target."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from train.block_draft import BLOCK, BlockDraft
from train.data import Document, Share, draw
from train.draft import Draft
from train.model import ModelSize
from train.optimise import Recipe, train
from train.target import Target

TARGET_RECIPE = Recipe(steps=700, matrix_rate=0.01)
DRAFT_RECIPE = Recipe(steps=400, matrix_rate=0.02, long_batch=(3, 1024))
BLOCK_RECIPE = Recipe(steps=300, matrix_rate=0.02, batch=(8, 256), long_batch=(2, 1024))

TARGET_CORPUS = (Share("easy", 0.45), Share("hard", 0.25), Share("mixed", 0.3))
# The draft learns the look and spelling of pages and ledgers, but never sees their rule: their entries are drawn at
# random, and the draft learns from the text itself, because the target's opinion would reveal the rule.
DRAFT_CORPUS = (Share("easy", 0.6), Share("mixed", 0.25, ruled=False), Share("hard", 0.15, ruled=False))

# Bytes that no rule determines teach little; they keep some weight so that a text's opening is not garbage.
OPENING_WEIGHT = 0.2
# The letters of a record repeat those above them; what has to be learned is the number.
DIGIT_WEIGHT = 4.0
UNROLL = 7
# Neighboring chains teach nearly the same, so only this share of them is unrolled past the first step.
CHAINS_ONE_IN = 3
STEP_DECAY = 0.8
# Most blocks are as wide as the draft's own, some narrower: the server also verifies, and so drafts, narrower ones.
BLOCK_WIDTHS = (BLOCK, BLOCK, 8, 4)
BLOCKS_A_DOCUMENT = 8
BLOCK_DECAY = 0.87


def train_target(size: ModelSize, recipe: Recipe, seed: int) -> Target:
    """Train a target from scratch."""
    torch.manual_seed(seed)
    rng = random.Random(f"target {seed}")
    model = Target(size)

    def loss_at(step: int) -> Tensor:
        count, length = recipe.shape(step)
        documents = [document for _, document in draw(TARGET_CORPUS, rng, count, length + 1)]
        ids = to_ids(documents)
        logits, _ = model(ids[:, :-1])
        return text_loss(logits, ids[:, 1:], byte_weights(documents, ids)[:, 1:])

    train("target", model, recipe, loss_at)
    return model.eval().requires_grad_(False)


Lesson = tuple[Tensor, Tensor, Tensor]


def lesson(target: Target, recipe: Recipe, rng: random.Random, step: int) -> Lesson:
    """Return a draft's lesson at *step*: ids [B, T], and for them the target's features and what it teaches."""
    count, length = recipe.shape(step)
    drawn = draw(DRAFT_CORPUS, rng, count, length)
    ids = to_ids([document for _, document in drawn])
    own = torch.tensor([share.ruled for share, _ in drawn])
    with torch.no_grad():
        logits, features = target(ids)
        return ids, features, teacher(logits, ids, own)


def train_draft(target: Target, recipe: Recipe, seed: int) -> Draft:
    """Train a draft for *target*, which does not change."""
    torch.manual_seed(seed)
    rng = random.Random(f"draft {seed}")
    model = Draft(target.size)
    model.start_from(target)

    def loss_at(step: int) -> Tensor:
        ids, features, wanted = lesson(target, recipe, rng, step)
        length = ids.shape[1]
        with torch.no_grad():
            embeds = target.model.embed_tokens(ids)
        chosen = torch.randperm(length - UNROLL)[: length // CHAINS_ONE_IN]
        return unrolled_loss(model.unroll(embeds, features, UNROLL, chosen), wanted, chosen)

    train("draft", model, recipe, loss_at)
    return model.eval().requires_grad_(False)


def train_block_draft(target: Target, recipe: Recipe, seed: int) -> BlockDraft:
    """Train a block draft for *target*, which does not change."""
    torch.manual_seed(seed)
    rng = random.Random(f"block draft {seed}")
    model = BlockDraft(target.size)
    model.start_from(target)

    def loss_at(step: int) -> Tensor:
        ids, features, wanted = lesson(target, recipe, rng, step)
        width = rng.choice(BLOCK_WIDTHS)
        anchors = 1 + torch.randperm(ids.shape[1] - width)[:BLOCKS_A_DOCUMENT]
        return block_loss(model.logits(target, ids, features, anchors, width), wanted, anchors)

    train("block draft", model, recipe, loss_at)
    return model.eval().requires_grad_(False)


def to_ids(documents: Sequence[Document]) -> Tensor:
    """Token ids [B, T]: the bytes themselves."""
    return torch.tensor([list(document.text) for document in documents])


def byte_weights(documents: Sequence[Document], ids: Tensor) -> Tensor:
    """Loss weights of ids [B, T]."""
    given = torch.tensor([document.given for document in documents])
    digit = (ids >= ord("0")) & (ids <= ord("9"))
    opening = torch.arange(ids.shape[1]) < given[:, None]
    return torch.where(opening, OPENING_WEIGHT, torch.where(digit, DIGIT_WEIGHT, 1.0))


def text_loss(logits: Tensor, wanted: Tensor, weights: Tensor) -> Tensor:
    """Weighted mean cross-entropy of logits [B, T, vocab] against token ids [B, T]."""
    losses = F.cross_entropy(logits.flatten(0, 1), wanted.flatten(), reduction="none")
    return (losses * weights.flatten()).sum() / weights.sum()


def teacher(logits: Tensor, ids: Tensor, own: Tensor) -> Tensor:
    """The distribution [B, T, vocab] that the draft imitates.

    The target's if the target would write such a document (*own* [B]); otherwise the document's next token.
    """
    wanted = logits.softmax(dim=-1)
    text = F.one_hot(ids[:, 1:], logits.shape[-1]).to(wanted.dtype)
    wanted[:, :-1] = torch.where(own[:, None, None], wanted[:, :-1], text)
    return wanted


def unrolled_loss(unrolled: Sequence[Tensor], wanted: Tensor, chosen: Tensor) -> Tensor:
    """Cross-entropy of every draft step, with less weight on later steps; shapes as in `Draft.unroll` and `teacher`."""
    anchors = torch.arange(unrolled[0].shape[1])
    total = torch.zeros(())
    for step, logits in enumerate(unrolled):
        aim = wanted[:, (anchors if step == 0 else chosen) + step + 1]
        total = total - STEP_DECAY**step * (aim * logits.log_softmax(dim=-1)).sum(dim=-1).mean()
    return total


def block_loss(logits: Tensor, wanted: Tensor, anchors: Tensor) -> Tensor:
    """Cross-entropy of the drafts of blocks, with less weight later; shapes as in `BlockDraft.logits` and `teacher`.

    Right later drafts of a block count only if the earlier ones are right.
    """
    places = torch.arange(logits.shape[2])
    losses = -(wanted[:, anchors[:, None] + places] * logits.log_softmax(dim=-1)).sum(dim=-1)
    return (losses.mean(dim=(0, 1)) * BLOCK_DECAY**places).sum()
