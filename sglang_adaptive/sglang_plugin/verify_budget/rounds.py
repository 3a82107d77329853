"""Runs rounds that draft for all requests and verify the likeliest drafts of the batch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from sglang_adaptive.policy.observation import BudgetEvidence
from sglang_adaptive.runtime.budgets import BINS, budgets_seen, looked_steps
from sglang_adaptive.runtime.controller import AdaptiveController
from sglang_adaptive.runtime.round_note import RoundNote
from sglang_adaptive.sglang_plugin.acceptance import accept, is_plainly_greedy
from sglang_adaptive.sglang_plugin.capacity import slots_of_a_round
from sglang_adaptive.sglang_plugin.guard import Guard
from sglang_adaptive.sglang_plugin.verify_budget import looks
from sglang_adaptive.sglang_plugin.verify_budget.packing import Packing, packed_input, prefixes, ranks
from sglang_adaptive.sglang_plugin.verify_budget.setup_check import (
    FORCE,
    forced_budget,
    needs_graphs,
    state_of,
    why_rectangles,
)
from sglang_adaptive.sglang_plugin.verify_budget.target_graphs import LongestRows, TargetGraphs

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Drafted:
    """A round between its drafts and their verification."""

    verify_input: Any
    chances: Tensor
    """[requests, steps]"""
    budget: int | None
    packing: Packing | None
    """None without a budget."""
    looked: int
    """Number of first steps that are looked at; 0 for none."""


@dataclass(frozen=True, slots=True)
class _Told:
    """The numbers of a round on their way to the host; valid once its result has arrived."""

    numbers: Tensor
    """int64, on the host: verified and completed drafts by request, if there is a budget; then, if *budgets* is not
    empty, the accepted drafts, and the results of ``looks.kept`` and ``looks.calibration``."""

    requests: int
    budget: int | None
    steps: int
    """Number of first steps that were looked at."""
    budgets: Sequence[int]
    """Budgets that the look covers, ascending; empty where it covers only the round's own."""

    def fill(self, note: RoundNote, result: Any) -> None:
        """Fill the numbers into the *note* of the round, whose *result* has arrived."""
        numbers = self.numbers.tolist()
        note.budget = self.budget
        if self.budget is not None:
            note.verified, note.completed = numbers[: self.requests], numbers[self.requests : 2 * self.requests]
            numbers = numbers[2 * self.requests :]
        if not numbers:
            return
        count = len(self.budgets)
        whole, counts = numbers[0], numbers[2 * count + 1 :]
        ranked, uniform = numbers[1 : count + 1], numbers[count + 1 : 2 * count + 1]
        kept = [dict(zip(self.budgets, sums, strict=True)) for sums in (ranked, uniform)]
        note.evidence = BudgetEvidence(self.steps, whole, *kept)
        note.trials, note.believed, note.accepted = (counts[part * BINS : (part + 1) * BINS] for part in range(3))


class PackedRounds:
    """The rounds of one worker. With a budget, a round verifies `requests * budget` drafts, or all if it has fewer."""

    def __init__(
        self,
        budget: Callable[[], int | None],
        exponent: Callable[[], float] = lambda: 1.0,
        graphs: TargetGraphs | None = None,
        ladder: tuple[int, ...] = (),
        stop: Callable[[str], None] = lambda why: None,
    ) -> None:
        """*budget* returns the mean drafts per request to verify in the coming round, None for all.

        *exponent* returns the power of the draft's chances that was right lately. Budgets of *ladder*, ascending, are
        looked at. *graphs* is None on a backend that needs no graph. After an error packing ends, and *stop* gets why.
        """
        self.graphs = graphs
        self.guard = Guard("adaptive: all requests of a batch verify the same number of drafts from now on")
        self.rounds = 0
        """Rounds whose requests could verify unequal numbers of drafts."""
        self._budget, self._exponent, self._stop = budget, exponent, stop
        self._ladder = ladder
        self._seen = 0
        self._chances: Tensor | None = None
        self._round: _Drafted | None = None
        self._told: _Told | None = None
        self._draw: torch.Generator | None = None

    @classmethod
    def where_it_can(
        cls, worker: Any, controller: AdaptiveController, longest: LongestRows, stop: Callable[[str], None]
    ) -> PackedRounds | None:
        """Return an object that packs *worker*'s rounds; None, after *stop* gets why, if the setup rules it out.

        *longest* has the rows that the target's graphs were captured for; *stop* is as in the constructor.
        """
        why, forced = next(why_rectangles(worker), None), forced_budget()
        if why is not None:
            logger.warning("adaptive: all requests of a batch verify the same number of drafts: %s", why)
            stop(why)
            return None
        if forced is None:
            controller.allow_budgets()
        else:
            logger.warning(
                "adaptive: at most %d drafts per request are verified, on average, because of %s", forced, FORCE
            )
        runner = worker.target_worker.model_runner
        return cls(
            lambda: forced or controller.choice.budget,
            lambda: controller.calibration.exponent,
            TargetGraphs(runner, partial(state_of, worker), longest) if needs_graphs(runner) else None,
            controller.tiers,
            stop,
        )

    def note_drafts(self, chances: Tensor | None) -> None:
        """Keep the *chances* of a round's drafts, [requests, steps]; None if they are unknown."""
        self._chances = chances

    def drafted(self) -> Tensor | None:
        """Return the noted chances of the round's drafts; None if none were noted."""
        return self._chances

    def prepare(self, prepare: Callable[..., Any], verify_input: Any, pool: Any, batch: Any, target: Any) -> Any:
        """Let the target read only the likeliest drafts, packed; *prepare* is SGLang's eagle_prepare_for_verify.

        The rest of the round reads the rectangle: the chains of *verify_input* end at their last verified token, and
        the batch keeps the slots of all its tokens, which the draft extend writes.
        """
        made = self._attempt(self._packed, verify_input, batch)
        if made is None:
            return prepare(verify_input, pool, batch, target)
        packing, slots, packed = made
        batch.spec_info = packed
        prepared = prepare(packed, pool, batch, target)
        if not prepared[1]:
            # Without a graph the backend of all steps has room for the rows; that of fewer steps does not.
            self.give_graphs_back()
        batch.spec_info, batch.input_ids, batch.out_cache_loc = verify_input, verify_input.draft_token, slots
        packing.cut(verify_input.retrieve_next_token)
        return prepared

    def accept(
        self, verify_input: Any, batch: Any, logits_output: Any, grammar_mask: Any, watermark_state: Any
    ) -> tuple[Tensor, Tensor, Tensor] | None:
        """Spread hidden states and logits to the rectangle; return the outcome of a plainly greedy round, else None."""
        packing = self.take(verify_input)
        if packing is None:
            return None
        if logits_output.hidden_states is not None:
            logits_output.hidden_states = packing.spread(logits_output.hidden_states)
        if not batch.return_logprob and is_plainly_greedy(batch, grammar_mask, watermark_state):
            return accept(verify_input, packing.spread(logits_output.next_token_logits.argmax(-1)))
        logits_output.next_token_logits = packing.spread(logits_output.next_token_logits)
        return None

    def look(self, verify_input: Any, accepted: Tensor) -> None:
        """Send the look at the round of *verify_input* to the host; its requests *accepted* [requests] drafts."""
        self._attempt(self._look, verify_input, accepted)

    def attach(self, note: RoundNote) -> None:
        """Add the latest look to the *note* on its round, once it has arrived."""
        told, self._told = self._told, None
        if told is not None:
            note.arriving.append(told.fill)

    def _attempt(self, part: Callable[..., Any], *args: Any) -> Any:
        found = self.guard.attempt(part, *args)
        if self.guard.closed:
            self.give_graphs_back()
            self._stop(str(self.guard.error))
        return found

    def _packed(self, verify_input: Any, batch: Any) -> tuple[Packing, Tensor, Any] | None:
        packing = self.packing(verify_input)
        if packing is None:
            return None
        slots = verify_input.prepared_out_cache_loc
        if slots is None:
            slots = slots_of_a_round(batch, verify_input.draft_token_num)
        packed = packed_input(verify_input, packing, slots, self.padded_tokens(packing))
        self.borrow_graphs(packing)
        return packing, slots, packed

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
            kept = prefixes(ranks(chances), budget)
            packing = Packing.of(kept, width - 1, requests * (budget + 1))
            self.rounds += 1
        else:
            budget = None
        looked = looked_steps(self._seen, requests, width - 1, budget, self._ladder)
        if packing is not None or looked:
            self._round = _Drafted(verify_input, chances, budget, packing, looked)
        return packing

    def padded_tokens(self, packing: Packing) -> int:
        """Return the tokens of the pass that reads *packing*, including those of a graph's unused requests."""
        requests, tokens = len(packing.lengths), len(packing.places)
        padded = self.graphs and self.graphs.tokens(tokens // requests - 1, requests, packing.width)
        return padded or tokens

    def borrow_graphs(self, packing: Packing) -> None:
        """Let the target run this round's packed pass in the graphs of `budget` steps, if it needs graphs."""
        if self.graphs is not None:
            self.graphs.borrow(len(packing.places) // len(packing.lengths) - 1)

    def give_graphs_back(self) -> None:
        """Let the target run in its own graphs again, if it does not."""
        if self.graphs is not None:
            self.graphs.give_back()

    def take(self, verify_input: Any) -> Packing | None:
        """Return how the round of *verify_input* was packed, None if it was not; call it after the target's pass."""
        self.give_graphs_back()
        noted = self._round
        if noted is None or noted.verify_input is not verify_input or noted.packing is None:
            return None
        if noted.packing.places.is_cuda:
            # They may have been made on the plan stream, and this stream reads them.
            noted.packing.places.record_stream(torch.cuda.current_stream())
        return noted.packing

    def _look(self, verify_input: Any, accepted: Tensor) -> None:
        """Do what `look` does; nothing waits for the numbers."""
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
            parts += [seen.sum().view(1), looks.kept(ranks(first), rungs, seen)]
            parts.append(looks.calibration(chances, verified, accepted))
        if parts:
            numbers = torch.cat([part.long() for part in parts]).to("cpu", non_blocking=True)
            self._told = _Told(numbers, len(accepted), noted.budget, noted.looked, budgets)

    def _fits(self, budget: int, requests: int, width: int) -> bool:
        return self.graphs is None or self.graphs.tokens(budget, requests, width) is not None

    def _coins(self, device: Any) -> torch.Generator:
        if self._draw is None:  # a separate generator, so that sampled tokens do not depend on it
            self._draw = torch.Generator(device)
            self._draw.manual_seed(0)
        return self._draw
