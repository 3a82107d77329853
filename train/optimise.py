"""Optimizers, their schedule, and the loop of both trainings."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Recipe:
    """Steps and learning rates of a training.

    The last *long_share* of the steps uses fewer, longer documents, so that lookups still work far into a text.
    """

    steps: int
    matrix_rate: float
    other_rate: float = 3e-3
    batch: tuple[int, int] = (16, 256)
    long_batch: tuple[int, int] = (4, 1024)
    long_share: float = 0.2
    warm_up: int = 20
    decay_share: float = 0.4

    def shape(self, step: int) -> tuple[int, int]:
        """Documents and bytes per document at *step*."""
        return self.batch if step < self.steps * (1 - self.long_share) else self.long_batch

    def factor(self, step: int) -> float:
        """Warm-up, plateau, linear decay to zero."""
        left = (self.steps - step) / (self.decay_share * self.steps)
        return min(1.0, (step + 1) / self.warm_up, left)


def optimisers(model: nn.Module, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """Muon for the inner matrices, AdamW for embedding, head and norms."""
    named = [(name, weight) for name, weight in model.named_parameters() if weight.requires_grad]
    inner = [w for name, w in named if w.dim() == 2 and "embed_tokens" not in name and "lm_head" not in name]
    chosen = {id(w) for w in inner}
    outer = [w for _, w in named if id(w) not in chosen]
    return [
        torch.optim.Muon(inner, lr=recipe.matrix_rate, momentum=0.95, weight_decay=0.01),
        torch.optim.AdamW(outer, lr=recipe.other_rate, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def train(name: str, model: nn.Module, recipe: Recipe, loss_at: Callable[[int], Tensor]) -> None:
    """Minimize *loss_at(step)*, printing a line every few steps."""
    pair = optimisers(model, recipe)
    rates = (recipe.matrix_rate, recipe.other_rate)
    begin = time.monotonic()
    for step in range(recipe.steps):
        loss = loss_at(step)
        loss.backward()
        for optimiser, rate in zip(pair, rates, strict=True):
            optimiser.param_groups[0]["lr"] = rate * recipe.factor(step)
            optimiser.step()
            optimiser.zero_grad()
        if step % 25 == 0 or step == recipe.steps - 1:
            seconds = time.monotonic() - begin
            print(f"{name}: step {step + 1}/{recipe.steps}, loss {loss.item():.3f}, {seconds:.0f} s", flush=True)
