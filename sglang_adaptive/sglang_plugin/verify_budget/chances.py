"""Keeps the chance that the draft gives each of its tokens, from CUDA graphs too.

SGLang 0.5.23 computes no probability for chains. Inside the graph of the draft's steps the largest softmax of each
step's logits goes to a tensor that belongs to the graph; each replay fills it in again, so nothing waits for it. It is
taken right after each step, because a graph may write the logits of all steps to one place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor


def top_chance(logits: Tensor) -> Tensor:
    """Return the probability of the likeliest token of each row of *logits* [rows, vocabulary], float32 [rows, 1]."""
    return torch.softmax(logits.float(), -1).amax(-1, keepdim=True)


class Chances:
    """The chances that one scheduler's draft gives its tokens."""

    def __init__(self) -> None:
        self._of_graphs: WeakKeyDictionary[Any, Tensor] = WeakKeyDictionary()
        """By SGLang's runner of the draft's graphs: float32 [largest batch, steps]."""
        self._watched: tuple[Any, Callable[[Any], None]] | None = None
        self._capturing: Any = None

    @property
    def is_capturing(self) -> bool:
        """Whether a graph of the draft's steps is being captured."""
        return self._capturing is not None

    @contextmanager
    def capturing(self, graphs: Any) -> Iterator[None]:
        """Let drafts inside the ``with`` fill in the chances of *graphs*, SGLang's runner of the draft's graphs."""
        if graphs not in self._of_graphs:
            # Before the capture, because graphs reuse their own memory.
            steps = graphs.speculative_num_steps
            self._of_graphs[graphs] = torch.zeros(graphs.max_bs, steps, dtype=torch.float32, device=graphs.device)
        self._capturing = graphs
        try:
            yield
        finally:
            self._capturing = None

    @contextmanager
    def watching(self, runner: Any, keep: Callable[[Any], None]) -> Iterator[None]:
        """Call *keep* with each output of *runner*'s forward passes inside the ``with``, as soon as it exists."""
        self._watched = (runner, keep)
        try:
            yield
        finally:
            self._watched = None

    def note_output(self, runner: Any, output: Any) -> None:
        """Pass *output*, a LogitsProcessorOutput of *runner*, to its watcher."""
        if self._watched is not None and runner is self._watched[0]:
            self._watched[1](output)

    def drafted(self, run: Callable[..., Any], draft: Any, forward_batch: Any) -> tuple[Any, Tensor]:
        """Run the draft's steps with *run*; return its result and the chances, float32 [requests, steps].

        During a capture, the chances also go to the tensor of that graph.
        """
        found = [forward_batch.spec_info.topk_p.float()]
        with self.watching(draft.draft_runner, lambda output: found.append(top_chance(output.next_token_logits))):
            result = run(draft, forward_batch)
        chances = torch.cat(found, 1)
        if self._capturing is not None:
            self._of_graphs[self._capturing][: len(chances)].copy_(chances)
        return result, chances

    def replayed(self, graphs: Any, requests: int) -> Tensor | None:
        """Return the chances of the last replay of *graphs*, [requests, steps]; None where none were captured.

        The next replay overwrites them.
        """
        chances = self._of_graphs.get(graphs)
        return None if chances is None else chances[:requests]

    def extend(self, extend: Callable[..., None], draft: Any, batch: Any, result: Any, **kwargs: Any) -> None:
        """Run the draft extend after a verify pass, and give the next round's first drafts their chances.

        For chains SGLang sets them to 1. A zero-step round, whose extend may be deferred, leaves the 1.
        """
        # The outputs, not their chances: SGLang selects each request's last accepted token in them only afterwards.
        outputs: list[Any] = []
        with self.watching(draft.draft_runner, outputs.append):
            extend(draft, batch, result, **kwargs)
        if outputs and not batch.forward_mode.is_idle():
            result.next_draft_input.topk_p = top_chance(outputs[-1].next_token_logits)
