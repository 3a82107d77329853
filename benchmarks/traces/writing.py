"""Outputs of a target, generated in batches, with their hidden states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.traces.llama import Llama

KEEP_AT_MOST = 0.75
"""When less than this share of a batch's rows still generate, the others' cache is dropped."""


@dataclass(frozen=True)
class Writing:
    """A prompt and its output, ids [T]; the output starts at *prompt*. Features [T - 1, ..] of all but the last."""

    ids: Tensor
    prompt: int
    features: Tensor
    ended: bool
    """Whether the last token ends the text; otherwise the limit ended it."""


@torch.inference_mode()
def write(
    target: Llama,
    prompts: Sequence[Sequence[int]],
    new_tokens: int,
    ends: frozenset[int],
    temperature: float,
    generator: torch.Generator,
    floor: float = 0.0,
) -> list[Writing]:
    """Continue every prompt by up to *new_tokens*, all in one batch; a token of *ends* ends its text.

    A draw leaves out tokens whose probability is below *floor* times the likeliest one's.
    """
    device = target.embedding.device
    lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
    width = int(lengths.max())
    ids = torch.zeros(len(prompts), width + new_tokens, dtype=torch.long, device=device)
    for row, prompt in enumerate(prompts):
        ids[row, : len(prompt)] = torch.tensor(prompt, device=device)
    cache = target.cache(*ids.shape)
    hidden, some = target.prefill(ids[:, :width], cache)
    features = some.new_zeros(*ids.shape, some.shape[-1])
    features[:, :width] = some
    at = lengths.clone()  # position of each row's next token
    rows = torch.arange(len(prompts), device=device)  # rows in the cache, in its order
    active = torch.ones_like(rows, dtype=torch.bool)  # those that still generate
    final = torch.tensor(sorted(ends), dtype=torch.long, device=device)
    x = hidden[rows, at - 1]
    for left in reversed(range(new_tokens)):
        tokens = chosen(target.logits(x), temperature, generator, floor)
        ids[rows[active], at[rows[active]]] = tokens[active]
        at[rows[active]] += 1
        active = active & ~torch.isin(tokens, final)
        if not left or not active.any():
            break
        if active.sum() <= KEEP_AT_MOST * len(rows):
            cache.keep(active.nonzero()[:, 0])
            rows, tokens, active = rows[active], tokens[active], active[active]
        # A row that ended but is still in the batch writes to its last position, which is not read.
        last = at[rows] - 1
        out, some = target.decode(tokens[:, None], last, cache)
        features[rows, last], x = some[:, 0], out[:, 0]
    ended = torch.isin(ids[torch.arange(len(prompts), device=device), at - 1], final)
    return [
        Writing(ids[row, :end], len(prompts[row]), features[row, : end - 1], bool(ended[row]))
        for row, end in enumerate(at.tolist())
    ]


def chosen(logits: Tensor, temperature: float, generator: torch.Generator, floor: float = 0.0) -> Tensor:
    """Return one token [B] for each row of logits [B, vocab]: the likeliest, or a draw as in `write`."""
    if temperature == 0:
        return logits.argmax(dim=-1)
    shares = (logits / temperature).softmax(dim=-1)
    if floor:
        shares = shares * (shares >= floor * shares.amax(dim=-1, keepdim=True))
    return torch.multinomial(shares, 1, generator=generator)[:, 0]
