"""Drafts for all, verifies the likeliest drafts of the batch: what becomes of one round."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from sglang_adaptive.sglang_plugin.verify_budget.packing import Packing
from sglang_adaptive.sglang_plugin.verify_budget.ranking import likeliest_prefixes
from sglang_adaptive.sglang_plugin.verify_budget.target_graphs import TargetGraphs

if TYPE_CHECKING:
    from torch import Tensor


class PackedRounds:
    """The rounds of one worker, of which each verifies `requests * budget` drafts, or all if it has no more."""

    def __init__(self, worker: Any, budget: int, graphs: TargetGraphs | None = None) -> None:
        self.draft = worker._draft_worker
        self.budget = budget
        self.graphs = graphs
        """Where packed passes run; None on a backend that needs no graph."""
        self.rounds = 0
        """Rounds whose requests could verify unequal numbers of drafts."""
        self._chances: Tensor | None = None
        self._packed: tuple[Any, Packing] | None = None
        self._borrowed = False

    def snapshot(self) -> dict[str, int]:
        """Return the budget and the rounds that were packed, for /server_info."""
        return {"budget": self.budget, "packed_rounds": self.rounds}

    def note_drafts(self, chances: Tensor) -> None:
        """Keep the *chances* of a round's drafts, [requests, steps]."""
        self._chances = chances

    def drafted(self) -> Tensor | None:
        """Return the chances of the round's drafts, as noted; None if nobody noted them."""
        return self._chances

    def packing(self, verify_input: Any) -> Packing | None:
        """Return how the round of *verify_input* is packed; None if its requests verify all drafts."""
        chances, self._chances = self._chances, None
        self._packed = None
        requests, width = verify_input.retrieve_next_token.shape
        fits = chances is not None and tuple(chances.shape) == (requests, width - 1)
        if not fits or width - 1 <= self.budget or not requests:
            return None
        if self.graphs is not None and self.graphs.tokens(requests, width) is None:
            return None
        assert chances is not None
        packing = Packing.of(likeliest_prefixes(chances, self.budget), width - 1, requests * (self.budget + 1))
        self._packed = (verify_input, packing)
        self.rounds += 1
        return packing

    def padded_tokens(self, packing: Packing) -> int:
        """Return the tokens of the pass that reads *packing*, with those of a graph's unused requests."""
        tokens = self.graphs and self.graphs.tokens(len(packing.lengths), packing.width)
        return tokens or len(packing.places)

    def borrow_graphs(self) -> None:
        """Let the target run the packed pass of this round in the graphs of `budget` steps, if it needs graphs."""
        if self.graphs is not None:
            self.graphs.borrow()
            self._borrowed = True

    def give_graphs_back(self) -> None:
        """Let the target run in its own graphs again; does nothing where it does."""
        if self.graphs is not None and self._borrowed:
            self._borrowed = False
            self.graphs.give_back()

    def take(self, verify_input: Any) -> Packing | None:
        """Return how the round of *verify_input* was packed, once; None if it was not. The target's pass is over."""
        self.give_graphs_back()
        noted, self._packed = self._packed, None
        if noted is None or noted[0] is not verify_input:
            return None
        packing = noted[1]
        if packing.places.is_cuda:
            # They may have been made on the plan stream, and are read on this one.
            packing.places.record_stream(torch.cuda.current_stream())
        return packing


def packed_input(verify_input: Any, packing: Packing, slots: Tensor, padded_tokens: int) -> Any:
    """Return *verify_input* as the target reads it: packed, with SGLang's layout of query lengths.

    *slots* [requests * width] are the KV slots of the rectangle. The tokens up to *padded_tokens* belong to the unused
    requests of a graph, as many to each. On a GPU the draft has made a plan of the rectangle's slots (`kv_loc_plan`);
    without it SGLang makes one of the packed slots for this pass.
    """
    packed = dataclasses.replace(
        verify_input,
        draft_token=packing.pack(verify_input.draft_token),
        positions=packing.pack(verify_input.positions),
        prepared_out_cache_loc=packing.pack(slots),
        # The mean, by which SGLang finds the graph and the number of tokens.
        draft_token_num=len(packing.places) // len(packing.lengths),
        num_tokens_per_req=-1,
        kv_loc_plan=None,
    )
    packed.ragged_verify_layout = _layout_class()(
        verify_lens=packing.lengths,
        graph_num_tokens=padded_tokens,
        extend_start_loc=packing.starts[:-1],
        qo_indptr_device=packing.starts,
        total_verify_tokens=len(packing.places),
    )
    return packed


@cache
def _layout_class() -> Any:
    """Return SGLang's RaggedVerifyLayout, whose padding compiles no kernel while the server serves.

    SGLang's own has a Triton kernel for each power of two of requests, which the first such round would wait for.
    """
    from sglang.srt.speculative.ragged_verify import RaggedVerifyLayout

    class Layout(RaggedVerifyLayout, frozen=True):  # type: ignore[call-arg, misc, unused-ignore]
        def padded_to_bucket(self, *, padded_bs: int, cap: int | None = None) -> Any:
            unused = padded_bs - self.bs
            if not unused:
                return self
            each = (self.graph_num_tokens - self.total_verify_tokens) // unused
            ends = self.qo_indptr_device
            more = torch.arange(each, each * unused + 1, each, dtype=ends.dtype, device=ends.device)
            return type(self)(
                verify_lens=torch.cat([self.verify_lens, self.verify_lens.new_full((unused,), each)]),
                graph_num_tokens=self.graph_num_tokens,
                extend_start_loc=torch.cat([ends, ends[-1:] + more[:-1]]),
                qo_indptr_device=torch.cat([ends, ends[-1:] + more]),
                total_verify_tokens=self.graph_num_tokens,
            )

    return Layout
