"""Drafts for all, verifies the likeliest drafts of the batch: what becomes of one round."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from sglang_adaptive.sglang_plugin.verify_budget.packing import Packing
from sglang_adaptive.sglang_plugin.verify_budget.ranking import likeliest_prefixes

if TYPE_CHECKING:
    from torch import Tensor


def top_chance(logits: Tensor) -> Tensor:
    """Return the probability of the likeliest token of each row of *logits* [rows, vocabulary], float32 [rows, 1]."""
    return torch.softmax(logits.float(), -1).amax(-1, keepdim=True)


class PackedRounds:
    """The rounds of one worker, of which each verifies `requests * budget` drafts, or all if it has no more."""

    def __init__(self, worker: Any, budget: int) -> None:
        self.draft = worker._draft_worker
        self.budget = budget
        self.rounds = 0
        """Rounds whose requests could verify unequal numbers of drafts."""
        self._outputs: list[Any] | None = None
        self._chances: Tensor | None = None
        self._packed: tuple[Any, Packing] | None = None

    def note_output(self, runner: Any, output: Any) -> None:
        """Keep what a forward pass of the draft returned while somebody watches."""
        if self._outputs is not None and runner is self.draft.draft_runner:
            self._outputs.append(output)

    @contextmanager
    def watching(self) -> Iterator[list[Any]]:
        """Yield the list that collects the outputs of the draft's forward passes within."""
        self._outputs = []
        try:
            yield self._outputs
        finally:
            self._outputs = None

    def note_drafts(self, first: Tensor, outputs: list[Any]) -> None:
        """Keep the chances of a round's drafts: of the first, [requests, 1], and by the *outputs* of later steps."""
        self._chances = torch.cat([first.float(), *(top_chance(output.next_token_logits) for output in outputs)], 1)

    def packing(self, verify_input: Any) -> Packing | None:
        """Return how the round of *verify_input* is packed; None if its requests verify all drafts."""
        chances, self._chances = self._chances, None
        self._packed = None
        shape = tuple(verify_input.retrieve_next_token.shape)
        steps = shape[1] - 1
        fits = chances is not None and tuple(chances.shape) == (shape[0], steps)
        if not fits or steps <= self.budget or not shape[0] or verify_input.kv_loc_plan is not None:
            return None
        assert chances is not None
        packing = Packing.of(likeliest_prefixes(chances, self.budget), steps, shape[0] * (self.budget + 1))
        self._packed = (verify_input, packing)
        self.rounds += 1
        return packing

    def spread(self, verify_input: Any, logits_output: Any) -> None:
        """Spread what the target returned for *verify_input* to the rectangle, in place, if it was packed."""
        if self._packed is None or self._packed[0] is not verify_input:
            return
        packing = self._packed[1]
        self._packed = None
        logits_output.next_token_logits = packing.spread(logits_output.next_token_logits)
        if logits_output.hidden_states is not None:
            logits_output.hidden_states = packing.spread(logits_output.hidden_states)


def packed_input(verify_input: Any, packing: Packing, slots: Tensor) -> Any:
    """Return *verify_input* as the target reads it: packed, with SGLang's layout of query lengths.

    *slots* [requests * width] are the KV slots of the rectangle.
    """
    from sglang.srt.speculative.ragged_verify import RaggedVerifyLayout

    packed = dataclasses.replace(
        verify_input,
        draft_token=packing.pack(verify_input.draft_token),
        positions=packing.pack(verify_input.positions),
        prepared_out_cache_loc=packing.pack(slots),
    )
    packed.ragged_verify_layout = RaggedVerifyLayout(
        verify_lens=packing.lengths,
        graph_num_tokens=len(packing.places),
        extend_start_loc=packing.starts[:-1],
        qo_indptr_device=packing.starts,
        total_verify_tokens=len(packing.places),
    )
    return packed
