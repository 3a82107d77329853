"""Drafts for all, verifies the likeliest drafts of the batch: what becomes of one round."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from sglang_adaptive.runtime.look_turns import budgets_seen, looked_steps
from sglang_adaptive.sglang_plugin.scheduler.round_looks import Told
from sglang_adaptive.sglang_plugin.verify_budget import looks, ranking
from sglang_adaptive.sglang_plugin.verify_budget.packing import Packing
from sglang_adaptive.sglang_plugin.verify_budget.target_graphs import TargetGraphs

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class _Round:
    """A round between its drafts and their verification."""

    verify_input: Any
    chances: Tensor
    """[requests, steps]"""
    budget: int | None
    packing: Packing | None
    """Where it has a budget."""
    looked: int
    """The first so many steps are looked at; 0 for none."""


class PackedRounds:
    """The rounds of one worker. One with a budget verifies `requests * budget` drafts, or all if it has no more."""

    def __init__(
        self,
        worker: Any,
        budget: Callable[[], int | None],
        exponent: Callable[[], float] = lambda: 1.0,
        graphs: TargetGraphs | None = None,
        ladder: tuple[int, ...] = (),
    ) -> None:
        """*budget* says the mean drafts to verify of a request in the coming round, None for all.

        *exponent* says the power of the draft's chances that was right lately. Budgets of *ladder*, ascending, are
        looked at. *graphs* is None on a backend that needs no graph.
        """
        self.worker, self.draft = worker, worker._draft_worker
        self.graphs = graphs
        self.rounds = 0
        """Rounds whose requests could verify unequal numbers of drafts."""
        self._budget, self._exponent = budget, exponent
        self._ladder = ladder
        self._seen = 0
        self._chances: Tensor | None = None
        self._round: _Round | None = None
        self._told: Told | None = None
        self._borrowed = False
        self._draw: torch.Generator | None = None

    def note_drafts(self, chances: Tensor) -> None:
        """Keep the *chances* of a round's drafts, [requests, steps]."""
        self._chances = chances

    def drafted(self) -> Tensor | None:
        """Return the chances of the round's drafts, as noted; None if nobody noted them."""
        return self._chances

    def packing(self, verify_input: Any) -> Packing | None:
        """Return how the round of *verify_input* is packed; None if its requests verify all drafts."""
        chances, self._chances = self._chances, None
        self._round = self._told = None
        requests, width = verify_input.retrieve_next_token.shape
        if chances is None or tuple(chances.shape) != (requests, width - 1) or not requests:
            return None
        self._seen += 1
        budget, packing = self._budget(), None
        if budget is not None and budget < width - 1 and self._fits(budget, requests, width):
            kept = ranking.prefixes(ranking.ranks(chances), budget)
            packing = Packing.of(kept, width - 1, requests * (budget + 1))
            self.rounds += 1
        else:
            budget = None
        looked = looked_steps(self._seen, requests, width - 1, budget, self._ladder)
        if packing is not None or looked:
            self._round = _Round(verify_input, chances, budget, packing, looked)
        return packing

    def padded_tokens(self, packing: Packing) -> int:
        """Return the tokens of the pass that reads *packing*, with those of a graph's unused requests."""
        requests, tokens = len(packing.lengths), len(packing.places)
        padded = self.graphs and self.graphs.tokens(tokens // requests - 1, requests, packing.width)
        return padded or tokens

    def borrow_graphs(self, packing: Packing) -> None:
        """Let the target run the packed pass of this round in the graphs of `budget` steps, if it needs graphs."""
        if self.graphs is not None:
            self.graphs.borrow(len(packing.places) // len(packing.lengths) - 1)
            self._borrowed = True

    def give_graphs_back(self) -> None:
        """Let the target run in its own graphs again; does nothing where it does."""
        if self.graphs is not None and self._borrowed:
            self._borrowed = False
            self.graphs.give_back()

    def take(self, verify_input: Any) -> Packing | None:
        """Return how the round of *verify_input* was packed; None if it was not. The target's pass is over."""
        self.give_graphs_back()
        noted = self._round
        if noted is None or noted.verify_input is not verify_input or noted.packing is None:
            return None
        if noted.packing.places.is_cuda:
            # They may have been made on the plan stream, and are read on this one.
            noted.packing.places.record_stream(torch.cuda.current_stream())
        return noted.packing

    def look(self, verify_input: Any, accepted: Tensor) -> None:
        """Send to the host what the round of *verify_input* says, of which requests had *accepted* [requests] drafts.

        Nothing waits for it; `attach` lets the round's result carry it.
        """
        noted, self._round = self._round, None
        if noted is None or noted.verify_input is not verify_input:
            return
        chances, steps = noted.chances, noted.chances.shape[1]
        whole, verified, parts = accepted, torch.full_like(accepted, steps), []
        if noted.packing is not None:
            verified = noted.packing.lengths - 1
            whole = looks.completed(chances, verified, accepted, self._exponent(), self._coins(chances.device))
            parts += [verified, whole]
        budgets = budgets_seen(self._ladder, noted.looked, noted.budget)
        if budgets:
            seen, first = whole.clamp(max=noted.looked), chances[:, : noted.looked]
            rungs = torch.tensor(budgets, pin_memory=chances.is_cuda).to(chances.device, non_blocking=True)
            parts += [seen.sum().view(1), looks.kept(ranking.ranks(first), rungs, seen)]
            parts.append(looks.calibration(chances, verified, accepted))
        if parts:
            numbers = torch.cat([part.long() for part in parts]).to("cpu", non_blocking=True)
            self._told = Told(numbers, len(accepted), noted.budget, noted.looked, budgets)

    def attach(self, result: Any) -> None:
        """Let *result*, of the round that was looked at last, carry what the look said."""
        told, self._told = self._told, None
        if told is not None:
            told.attach(result)

    def _fits(self, budget: int, requests: int, width: int) -> bool:
        return self.graphs is None or self.graphs.tokens(budget, requests, width) is not None

    def _coins(self, device: Any) -> torch.Generator:
        if self._draw is None:  # of its own, so that sampled tokens do not depend on it
            self._draw = torch.Generator(device)
            self._draw.manual_seed(0)
        return self._draw
