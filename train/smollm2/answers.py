"""The answers: the target's own, four of five batches greedy."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from benchmarks.traces.record import batches
from benchmarks.traces.repetition import LONGEST_BLOCK, SHORTEST_COPY
from train.smollm2.clock import Clock
from train.smollm2.plan import Plan
from train.smollm2.speaker import Said, Speaker
from train.smollm2.store import Documents, Ids, Shards

SAMPLED_EVERY, TEMPERATURE = 5, 0.6
FEWEST_TOKENS = 4

KEPT_OF_LOOP = 2 * SHORTEST_COPY
"""Kept tokens of an exact repetition: enough to learn to continue it, with little that teaches nothing."""


def answer(speaker: Speaker, questions: Documents, shards: Shards, plan: Plan, clock: Clock) -> bool:
    """Answer *questions*, one shard per batch, until all are answered or the time is up; return whether it is done."""
    done = shards.count()
    for number, batch in enumerate(batched(questions, plan)):
        if number < done:
            continue
        # The time may run out in the first call's first batch; without a batch there is nothing to train on.
        if clock.leaving() or (shards.count() and clock.over()):
            return clock.over()
        speaker.reseed(plan.seed + number)
        temperature = TEMPERATURE if number % SAMPLED_EVERY == SAMPLED_EVERY - 1 else 0.0
        prompts = [questions[index].tolist() for index in batch]
        documents, lengths = kept(prompts, speaker.say(prompts, plan.answer_tokens, temperature), speaker.device)
        shards.append(documents, lengths)
        clock.keep()
        tokens = sum(map(len, documents)) - sum(lengths)
        print(f"answers: shard {number}, {len(lengths)} answers, {tokens} tokens, {clock.used():.0f} s", flush=True)
    return True


def batched(questions: Documents, plan: Plan) -> Iterator[list[int]]:
    """Yield the indices of *questions* in random order, questions of similar length together."""
    order = np.random.default_rng(plan.seed).permutation(len(questions))
    lengths = questions.lengths() + plan.answer_tokens
    for first in range(0, len(order), plan.chunk):
        chunk = order[first : first + plan.chunk]
        found = [[int(chunk[index]) for index in batch] for batch in batches(lengths[chunk], plan.write_tokens)]
        # Not from shortest to longest, because the time may end in between.
        for index in np.random.default_rng(plan.seed + first).permutation(len(found)):
            yield found[index]


def kept(prompts: list[Ids], said: list[Said], device: torch.device) -> tuple[list[Ids], list[int]]:
    """Return whole documents and their questions' lengths, with loops cut and empty answers left out."""
    outputs = [[*one.ids, one.ended] if one.ended is not None else one.ids for one in said]
    starts = loop_starts(outputs, device)
    cut = [output[: start + KEPT_OF_LOOP] for output, start in zip(outputs, starts, strict=True)]
    pairs = [(prompt, output) for prompt, output in zip(prompts, cut, strict=True) if len(output) >= FEWEST_TOKENS]
    return [[*prompt, *output] for prompt, output in pairs], [len(prompt) for prompt, _ in pairs]


def loop_starts(outputs: list[Ids], device: torch.device) -> list[int]:
    """Return where each output's first exact repetition starts, or its length: a batched `first_copy`."""
    width = max(map(len, outputs), default=0)
    ids = -1 - torch.arange(width).repeat(len(outputs), 1)  # past the end of a text nothing equals anything
    for row, output in enumerate(outputs):
        ids[row, : len(output)] = torch.tensor(output, dtype=torch.long)
    ids = ids.to(device)
    first = torch.tensor([len(output) for output in outputs], device=device)
    for block in range(1, min(LONGEST_BLOCK, width - 1) + 1):
        start = _first_with_block(ids, block)
        if start is not None:
            first = torch.minimum(first, start)
    return first.tolist()


def _first_with_block(ids: Tensor, block: int) -> Tensor | None:
    """Return the first index of each row from which max(block, `SHORTEST_COPY`) tokens equal those *block* before."""
    needed, width = max(block, SHORTEST_COPY), ids.shape[1]
    if width - block < needed:
        return None
    same = torch.nn.functional.pad((ids[:, block:] == ids[:, :-block]).int().cumsum(dim=1), (1, 0))
    whole = same[:, needed:] - same[:, :-needed] == needed
    return torch.where(whole.any(dim=1), whole.int().argmax(dim=1) + block, width)
