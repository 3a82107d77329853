"""The chance that the draft gives each of its tokens, from CUDA graphs too.

SGLang 0.5.23 computes no probability for chains. Inside the graph of the draft's steps the largest softmax of each
step's logits goes to a tensor that belongs to the graph; a replay fills it in again, so that nothing waits for it. It
is taken at once after each step, because a graph may write the logits of all steps to one place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch import Tensor

_CHANCES = "_sglang_adaptive_chances"
"""Attribute of SGLang's runner of the draft's graphs: float32 [largest batch, steps]."""

_watched: tuple[Any, list[Any], Callable[[Any], Any]] | None = None
_capturing: Any = None


def top_chance(logits: Tensor) -> Tensor:
    """Return the probability of the likeliest token of each row of *logits* [rows, vocabulary], float32 [rows, 1]."""
    return torch.softmax(logits.float(), -1).amax(-1, keepdim=True)


@contextmanager
def watching(runner: Any, keep: Callable[[Any], Any]) -> Iterator[list[Any]]:
    """Yield the list that gets *keep* of each output of *runner*'s forward passes within, as soon as it is there."""
    global _watched
    kept: list[Any] = []
    _watched = (runner, kept, keep)
    try:
        yield kept
    finally:
        _watched = None


def note_output(runner: Any, output: Any) -> None:
    """Keep *output*, a LogitsProcessorOutput, if somebody watches *runner*."""
    if _watched is not None and runner is _watched[0]:
        _watched[1].append(_watched[2](output))


def of_output(output: Any) -> Tensor:
    """Return the chances of the likeliest tokens by *output*, a LogitsProcessorOutput."""
    return top_chance(output.next_token_logits)


@contextmanager
def capturing(graphs: Any) -> Iterator[None]:
    """Let the drafts made within fill in the chances of *graphs*, SGLang's runner of the draft's graphs."""
    global _capturing
    if not hasattr(graphs, _CHANCES):
        # Before the capture, so that it does not lie in the graphs' own memory, which they reuse.
        steps = graphs.speculative_num_steps
        setattr(graphs, _CHANCES, torch.zeros(graphs.max_bs, steps, dtype=torch.float32, device=graphs.device))
    _capturing = graphs
    try:
        yield
    finally:
        _capturing = None


def is_capturing() -> bool:
    """Return whether a graph of the draft's steps is being captured."""
    return _capturing is not None


def drafted(original: Callable[..., Any], draft: Any, forward_batch: Any) -> tuple[Any, Tensor]:
    """Run the draft's steps by *original*; return what it returns, and the chances, float32 [requests, steps].

    While a graph is captured, they go to the tensor of that graph too.
    """
    first = forward_batch.spec_info.topk_p
    with watching(draft.draft_runner, of_output) as later:
        result = original(draft, forward_batch)
    chances = torch.cat([first.float(), *later], 1)
    if _capturing is not None:
        getattr(_capturing, _CHANCES)[: len(chances)].copy_(chances)
    return result, chances


def replayed(graphs: Any, requests: int) -> Tensor | None:
    """Return the chances of the last replay of *graphs*, [requests, steps]; None where none were captured.

    The next replay overwrites them.
    """
    chances: Tensor | None = getattr(graphs, _CHANCES, None)
    return None if chances is None else chances[:requests]
