"""What one batch teaches: the target's features and opinions, and which opinions judge which chains."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.traces.llama import Llama
from train.smollm2.packing import Integers, Rows


@dataclass(frozen=True)
class Judged:
    """Chains judged at a draft step: flat indices *at* [N] into the step's rows, *by* [N] into opinions."""

    at: Tensor
    by: Tensor


@dataclass(frozen=True)
class Lesson:
    """B rows of width T. The first step has a chain at every position, later steps only at *anchors* [B, A]."""

    ids: Tensor
    position: Tensor
    sees: Tensor
    """[B, 1, T, T]: whether a position may attend to another: an earlier one of its document, or itself."""
    anchors: Tensor
    judged: tuple[Judged, ...]
    opinions: Tensor
    """[M] flat positions whose next token belongs to an answer: the target's opinion is needed there."""


def lesson_of(rows: Rows, steps: int, share: float, rng: np.random.Generator, device: torch.device) -> Lesson:
    """Prepare a batch; a *share* of each row's positions is drawn as anchors, preferably those that can be judged.

    Nothing here waits for the *device* or blocks it: a batch can be prepared while it computes.
    """
    width = rows.ids.shape[1]
    # The target at j predicts token j + 1. A chain's first opinion is on the second token of the answer, because the
    # first comes from the pass over the prompt.
    asked = (rows.position >= rows.prompt) & (rows.position <= rows.length - 2)
    opinion = np.where(asked.ravel(), np.cumsum(asked.ravel()) - 1, -1).reshape(asked.shape)
    every = np.broadcast_to(np.arange(width), rows.ids.shape)
    able = _can(rows, every, 0)
    order = np.argsort(rng.random(rows.ids.shape) + ~able, axis=1)
    anchors = np.sort(order[:, : max(1, round(share * width))], axis=1)
    judged = [_judged(rows, opinion, every if step == 0 else anchors, step) for step in range(steps)]

    def moved(values: Integers) -> Tensor:
        tensor = torch.from_numpy(np.ascontiguousarray(values))
        return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor

    document = moved(rows.document)
    same = document[:, :, None] == document[:, None, :]
    sees = (same & torch.ones(width, width, dtype=torch.bool, device=device).tril())[:, None]
    return Lesson(
        moved(rows.ids),
        moved(rows.position),
        sees,
        moved(anchors),
        tuple(Judged(moved(at), moved(by)) for at, by in judged),
        moved(np.flatnonzero(asked.ravel())),
    )


def _can(rows: Rows, anchors: Integers, step: int) -> npt.NDArray[np.bool_]:
    """Whether the chain of each anchor [B, A] starts in an answer and stays within it for *step* + 1 steps."""
    position, prompt, length = (
        np.take_along_axis(values, anchors, axis=1) for values in (rows.position, rows.prompt, rows.length)
    )
    return (position >= prompt - 1) & (position + step + 1 <= length - 2) & (length > 0)


def _judged(rows: Rows, opinion: Integers, anchors: Integers, step: int) -> tuple[Integers, Integers]:
    able = _can(rows, anchors, step)
    last = np.minimum(anchors + step + 1, opinion.shape[1] - 1)
    return np.flatnonzero(able.ravel()), np.take_along_axis(opinion, last, axis=1)[able]


@dataclass(frozen=True)
class Opinions:
    """The target's opinions, in the draft's vocabulary of V tokens."""

    features: Tensor
    """[B, T, 3 hidden]."""
    shares: Tensor
    """[M, V]: the next token's distribution, only over the draft's vocabulary."""
    best: Tensor
    """[M]: the most likely token's index in that vocabulary, -1 if it is outside."""
    entropy: Tensor
    """[M]: of `shares`, in nats."""


@torch.no_grad()
def opinions_of(target: Llama, lesson: Lesson, vocabulary: Tensor, places: Tensor) -> Opinions:
    """Query the *target*. *vocabulary* [V] are the draft's tokens, *places* [vocab] the index of each token, or -1."""
    group = target.heads // target.kv_heads

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        return F.scaled_dot_product_attention(q, keys, values, attn_mask=lesson.sees)

    hidden, features = target.run(lesson.ids, lesson.position, attend)
    shares, best, entropy = [], [], []
    for part in hidden.flatten(0, 1)[lesson.opinions].split(4096):  # all logits at once would take gigabytes
        logits = target.logits(part)
        best.append(places[logits.argmax(dim=-1)])
        logs = logits[:, vocabulary].log_softmax(dim=-1)
        own = logs.exp()
        entropy.append(-(own * logs).sum(dim=-1))
        shares.append(own.to(hidden.dtype))
    return Opinions(features, torch.cat(shares), torch.cat(best), torch.cat(entropy))
