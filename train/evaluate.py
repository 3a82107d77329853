"""How many tokens a round accepts, counted as SGLang does, computed without a server.

Greedy speculative decoding is lossless, so the text is the target's own greedy text, and every round's draft chain
along it is right up to its first miss. One unroll over the finished text therefore contains every round: the chain from
anchor t reads the target's features up to t and, while it is right, the text's own tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from train.block_draft import BlockDraft
from train.draft import Draft
from train.target import Cache, Target

ROWS = 8
ANCHORS = 64
"""Blocks of a text that are drafted together."""


@dataclass(frozen=True)
class Writing:
    """A prompt and the target's continuation: token ids [T], the first *prompt* of which were given."""

    ids: Tensor
    prompt: int

    @property
    def written(self) -> bytes:
        """The new text; a special token appears as byte 255, which is in none of our texts."""
        return bytes(min(i, 255) for i in self.ids[self.prompt :].tolist())


@torch.no_grad()
def write(target: Target, prompts: Sequence[bytes], new_tokens: int) -> list[Writing]:
    """Greedy continuation of every prompt, all prompts in one batch in lockstep."""
    longest = max(map(len, prompts))
    ids = torch.zeros(len(prompts), longest + new_tokens, dtype=torch.long)
    for row, prompt in enumerate(prompts):
        ids[row, : len(prompt)] = torch.tensor(list(prompt))
    lengths = torch.tensor([len(prompt) for prompt in prompts])
    position = int(lengths.min())
    cache = Cache(target.size, *ids.shape)
    logits, _ = target(ids[:, :position], cache)
    while position < ids.shape[1]:
        best = logits[:, -1].argmax(dim=-1)
        ids[:, position] = torch.where(position < lengths, ids[:, position], best)
        logits, _ = target(ids[:, position : position + 1], cache)
        position += 1
    return [Writing(row[: n + new_tokens], n) for row, n in zip(ids, lengths.tolist(), strict=True)]


@torch.no_grad()
def correct_drafts(target: Target, draft: Draft, ids: Tensor, steps: int) -> Tensor:
    """Number of right drafts before the first miss, for a chain of *steps* from every anchor of ids [B, T].

    Returns [B, T - steps], each 0 .. steps.
    """
    logits, features = target(ids)
    best = logits.argmax(dim=-1)
    unrolled = draft.unroll(target.model.embed_tokens(ids), features, steps)
    anchors = ids.shape[1] - steps
    hits = [step.argmax(dim=-1) == best[:, k + 1 : k + 1 + anchors] for k, step in enumerate(unrolled)]
    return torch.stack(hits, dim=-1).long().cumprod(dim=-1).sum(dim=-1)


def rounds(correct: Sequence[int], prompt: int, steps: int) -> list[int]:
    """Accept lengths (correct drafts plus the bonus token) of the rounds of a text at depth *steps*.

    *correct* is a row of `correct_drafts`. The first round drafts from the prompt's last position, because prefill
    yields the token after the prompt. A round that would run past the measured part is left out.
    """
    anchor, lengths = prompt - 1, []
    while anchor < len(correct):
        lengths.append(min(correct[anchor], steps) + 1)
        anchor += lengths[-1]
    return lengths


def accept_lengths(
    target: Target, draft: Draft, writings: Sequence[Writing], depths: Sequence[int]
) -> dict[int, list[list[int]]]:
    """For each depth, the accept lengths of the rounds of each text: {depth: [[round, ...] a text]}."""
    deepest = max(depths)
    found: dict[int, list[list[int]]] = {depth: [] for depth in depths}
    for some, ids in _padded(writings):
        for row, writing in zip(correct_drafts(target, draft, ids, deepest).tolist(), some, strict=True):
            for depth in depths:
                found[depth].append(rounds(row[: len(writing.ids) - deepest], writing.prompt, depth))
    return found


@torch.no_grad()
def drafted_blocks(target: Target, draft: BlockDraft, ids: Tensor, steps: int) -> Tensor:
    """Like `correct_drafts`, for blocks of *steps* drafts; a block starts with the token after its anchor.

    Returns [B, T - steps - 1].
    """
    logits, features = target(ids)
    best = logits.argmax(dim=-1)
    correct = []
    for begin in torch.arange(1, ids.shape[1] - steps).split(ANCHORS):
        drafted = draft.logits(target, ids, features, begin, steps + 1).argmax(dim=-1)
        wanted = best[:, begin[:, None] + torch.arange(steps)]
        correct.append((drafted == wanted).long().cumprod(dim=-1).sum(dim=-1))
    return torch.cat(correct, dim=1)


def accept_lengths_of_blocks(
    target: Target, draft: BlockDraft, writings: Sequence[Writing], depths: Sequence[int]
) -> dict[int, list[list[int]]]:
    """Like `accept_lengths`; blocks of each depth draft separately, because all tokens of a block see each other."""
    found: dict[int, list[list[int]]] = {depth: [] for depth in depths}
    for some, ids in _padded(writings):
        for depth in depths:
            correct = drafted_blocks(target, draft, ids, depth).tolist()
            for row, writing in zip(correct, some, strict=True):
                found[depth].append(rounds(row[: len(writing.ids) - depth - 1], writing.prompt, depth))
    return found


def _padded(writings: Sequence[Writing]) -> Iterator[tuple[Sequence[Writing], Tensor]]:
    """Yield ROWS texts at a time, and their ids [B, T] with zeros after the shorter ones."""
    for start in range(0, len(writings), ROWS):
        some = writings[start : start + ROWS]
        ids = torch.zeros(len(some), max(len(writing.ids) for writing in some), dtype=torch.long)
        for row, writing in enumerate(some):
            ids[row, : len(writing.ids)] = writing.ids
        yield some, ids
