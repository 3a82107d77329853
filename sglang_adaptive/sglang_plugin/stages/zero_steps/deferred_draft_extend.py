"""Defers the draft extend of zero-step rounds: it runs once for several rounds, and before anything needs its output.

SGLang 0.5.23 runs it in every zero-step round, so that the draft's KV has no gap when drafting resumes. With
SGLANG_SPEC_SKIP_ZERO_STEP_DRAFT_EXTEND it skips it, and drafts are rejected until the request ends.
docs/architecture.md describes when the deferred draft extend runs.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sglang_adaptive.policy.observation import RoundNote
from sglang_adaptive.runtime.controller import AdaptiveController
from sglang_adaptive.runtime.pending_drafts import CatchUp, extend_schedule
from sglang_adaptive.runtime.states import RuntimeStates, SpecRuntimeState
from sglang_adaptive.sglang_plugin import features
from sglang_adaptive.sglang_plugin.configuration import configuration
from sglang_adaptive.sglang_plugin.guard import Guard
from sglang_adaptive.sglang_plugin.notes import note_of
from sglang_adaptive.sglang_plugin.setup import SEVERAL_LAYERS, Setup
from sglang_adaptive.sglang_plugin.stage import Rest, Stage
from sglang_adaptive.sglang_plugin.stages.zero_steps.catch_up import HeldRound, has_graph, run_catch_up
from sglang_adaptive.sglang_plugin.stages.zero_steps.left_for_later import Key, LeftForLater
from sglang_adaptive.sglang_plugin.start.state_builds import draft_extend_state

_OUTPUTS = ("topk_p", "topk_index", "hidden_states")
"""Fields of EagleDraftInput from which a draft starts, one row per request."""

WHOLE_MODEL = 4
"""Factor on the pending rounds where the draft is a whole model and a state is wide enough."""
WIDE_TOKENS, WIDE_REQUESTS = 32, 8
"""Tokens per request, and most requests per graph, of an extend-only state for such a draft: a pass over 256 tokens
takes about as long as over one."""


class DeferredDraftExtend(LeftForLater):
    """Keeps the pending rows of one worker's draft, as `HeldRound`, and runs the draft extend over them."""

    def __init__(
        self, worker: Any, controller: AdaptiveController, every: int, looked_up: Callable[[Any], bool]
    ) -> None:
        """At most *every* rounds, and the draft tokens of the widest runtime state, are kept.

        *looked_up* says whether the round of a batch has verified drafts that were looked up.
        """
        from sglang.srt.runtime_context import get_parallel

        self._worker, self._controller, self._looked_up = worker, controller, looked_up
        self._draft = worker._draft_worker
        guard = Guard("deferred-extend")
        pairs = worker.speculative_algorithm.is_eagle()
        super().__init__(guard, self._draft.req_to_token_pool, _states(worker, controller.states), every, pairs)
        self._context = self._draft.draft_runner.model_config.context_len
        self._shadow_drafts: ShadowDrafts | None = None  # of the previous round's draft extend
        self._running = False  # this object is calling SGLang's extend
        self._can_write = not SEVERAL_LAYERS.holds(Setup.of(worker))
        # Whether no other rank takes part in its passes, so that this one may choose their form; graphs are fast.
        cuda = torch.device(self._draft.device).type == "cuda" and "short-draft" not in features.turned_off()
        self._alone = cuda and get_parallel().tp_size == 1
        self._device_waits = False  # it was idle when this round began
        self._kv_only_since_output = 0  # passes since the last output that wrote only keys and values
        self._writes = 0

    @classmethod
    def where_it_can(cls, worker: Any, controller: AdaptiveController, looked_up: Callable[[Any], bool]) -> list[Stage]:
        """Return a stage that defers *worker*'s draft extends; none if they run in every round."""
        from sglang.srt.speculative.eagle_worker_v2 import EAGLEWorkerV2

        tiers = controller.states.tiers
        if not isinstance(worker, EAGLEWorkerV2):  # whose zero-step rounds have no draft extend
            return []
        if tiers[0] or len(tiers) == 1 or not features.may("deferred-extend", Setup.of(worker)):
            return []
        return [cls(worker, controller, configuration().zero_step_extend_every, looked_up)]

    def weights_changed(self) -> None:
        """Use the new runtime states if they were rebuilt after a weight update."""
        states = self._controller.states
        if states.by_steps[0] is not self._states[0]:
            self._states = _states(self._worker, states)

    def set_every(self, rounds: int) -> None:
        super().set_every(rounds)
        self._shadow_drafts = None  # with 1, nothing would replace it

    def snapshot(self) -> dict[str, Any]:
        return {**super().snapshot(), "writes": self._writes}

    def draft_extend(self, rest: Rest, drafter: Any, batch: Any, result: Any, **kwargs: Any) -> None:
        """Run the draft over the accepted tokens, or postpone that at zero steps."""
        mine = drafter is self._draft and drafter.speculative_num_steps == 0 and not self._running
        may = not self.guard.closed and (self._every > 1 or self._pending.rounds > 0)
        if not (mine and may and not batch.forward_mode.is_idle() and self.after_verify(rest, batch, result)):
            rest(drafter, batch, result, **kwargs)

    def after_verify(self, extend: Rest, batch: Any, result: Any) -> bool:
        """Replace a zero-step round's draft extend: keep its rows, and run the pending ones when they are due.

        Return False after an error: then the round's own draft extend has to run.
        """
        note = note_of(result, self._controller.states)
        try:
            keys = self._keys(batch)
            if self._shadow_drafts is not None:
                self._shadow_drafts.attach(note, keys)
                self._shadow_drafts = None
            hidden = result.logits_output.hidden_states
            block = HeldRound(None if hidden is None else hidden.clone(), result.next_token_ids)  # may raise, so first
            self._hold(keys, block)
            curious = self._controller.wants_shadow_drafts
            held, writes = extend_schedule(len(keys), self._every_of(batch), curious)
            waits = self._pending.rounds < held
            if waits or (self._can_write and self._kv_only_since_output < writes):
                note.extended = False
                if not batch.enable_overlap:  # with overlap, missing relay rows keep their values
                    self._worker._stub_skipped_draft_extend(batch, result)
                if waits:
                    # The scheduler writes to the shared pools once the draft's runner, which reads last, has read them.
                    # Without an extend the target does; with no event, it would wait for the end of the round.
                    event = self._worker.target_worker.model_runner.shared_read_done_event
                    self._draft.draft_runner.shared_read_done_event = event
                else:
                    whole = self._device_waits and not self._near_the_end(batch)
                    self._write(extend, batch, keys, ahead=1, whole=whole)
            else:
                self._shadow_drafts = self._run(extend, batch, result.next_draft_input, keys, ahead=1)
        except Exception as error:
            self._give_up(error)
            note.extended = True
            return False
        return True

    def after_draft_extend(self, batch: Any, result: Any) -> None:
        """After a round of looked-up drafts, let a following zero-step round check the draft's first token.

        Otherwise nothing is learned about the draft as long as lookup rounds come before the next output.
        """
        if self.guard.closed or self._every == 1 or not self._looked_up(batch):
            return
        try:
            chosen = result.next_draft_input.topk_index
            self._shadow_drafts = ShadowDrafts.of(self._draft, chosen, self._keys(batch))
        except Exception as error:
            self._give_up(error)

    def before_draft(self, draft: Any, batch: Any) -> None:
        """Run the pending rows of *batch*'s requests before a round drafts from their output."""
        if draft is not self._draft or batch.forward_mode.is_idle():
            return
        self._shadow_drafts = None  # this round verifies the same draft
        if self._pending.rounds == 0:
            return
        try:
            extend, keys = type(draft)._draft_extend_for_decode, self._keys(batch)
            if self._controller.warm_up.runs and self._pending.all_in_latest(keys):
                self._load_kernels(extend, batch, keys)
            self._run(extend, batch, batch.spec_info, keys, ahead=0)
            # This round's own draft extend reads the pools later; without a graph it records no event.
            draft.draft_runner.shared_read_done_event = None
        except Exception as error:
            self._give_up(error)

    def before_zero_steps(self, batch: Any) -> None:
        """Clear the read event before a zero-step round verifies, so that the one found afterwards is this round's."""
        if not self.guard.closed:
            self._worker.target_worker.model_runner.shared_read_done_event = None
            due = self._pending.rounds + 1 >= self._every
            self._device_waits = due and self._alone and torch.cuda.current_stream().query()

    def _every_of(self, batch: Any) -> int:
        """Return how many rounds of *batch* may be pending.

        For a few requests, a STANDALONE draft (a whole model) takes as long over 32 tokens as over eight.
        """
        if self._pairs or self._every == 1:
            return self._every
        with_graph = (state for state in reversed(self._states) if has_graph(state, len(batch.reqs)))
        widest = next(with_graph, self._states[-1]).speculative_num_draft_tokens
        if widest <= self._every or self._near_the_end(batch):
            return self._every
        return min(widest, WHOLE_MODEL * self._every)

    def _near_the_end(self, batch: Any) -> set[int]:
        """Return the rows of *batch* for whose requests the widest pass could read beyond the context.

        Page tables end there. A length on the host may lack the tokens of the rounds under way.
        """
        longest = self._context - 2 * self.max_every
        return {row for row, req in enumerate(batch.reqs) if req.kv.kv_committed_len > longest}

    def _run(self, extend: Rest, batch: Any, draft_input: Any, keys: list[Key], ahead: int) -> ShadowDrafts | None:
        """Run the pending rows of the requests *keys* of *batch*; write the output into their rows of *draft_input*.

        Returns the draft's first choices, of the requests that ran last where some ran separately.
        """
        shadow_drafts = None
        plan = self._pending.catch_up(keys)
        for part in () if plan is None else plan.split(self._near_the_end(batch)):
            tokens = max(part.counts)
            wide = [state for state in self._states if state.speculative_num_draft_tokens >= tokens]
            state = next((state for state in wide if has_graph(state, len(part.rows))), wide[0])
            rows, outcome = self._catch_up(extend, state, batch, part, ahead)
            _write_rows(draft_input, outcome, part, rows, len(batch.reqs))
            if ahead:  # before a round that drafts, nothing would check them
                shadow_drafts = ShadowDrafts.of(self._draft, outcome.topk_index, [keys[row] for row in part.rows])
            self._extends += 1
            self._kv_only_since_output = 0
        self._settle(keys)
        return shadow_drafts

    def _load_kernels(self, extend: Rest, batch: Any, keys: list[Key]) -> None:
        """Run the pending rows in every form that a pass over this batch may have."""
        plan = self._pending.catch_up(keys)
        assert plan is not None
        if len(keys) == 1:  # a change of ``adaptive_zero_step_extend_every`` changes the width, by which kernels differ
            for state in self._states:
                if state.speculative_num_draft_tokens >= max(plan.counts):
                    for early in {False, self._can_write}:
                        self._catch_up(extend, state, batch, plan, ahead=0, early=early)
        if self._can_write:
            self._write(extend, batch, keys, ahead=0)

    def _write(self, extend: Rest, batch: Any, keys: list[Key], ahead: int, whole: bool = False) -> None:
        """Write the keys and values of the pending rows of the requests *keys* of *batch*.

        Each request has a row of the latest round, which stays pending for the output of a full draft extend. A *whole*
        pass does more work but runs from a graph, so it ends sooner where the device waits for the host.
        """
        plan = self._pending.catch_up(keys)
        assert plan is not None
        tokens = max(self._every, *plan.counts)
        state = next(state for state in self._states if state.speculative_num_draft_tokens >= tokens)
        early = not (whole and has_graph(state, len(plan.rows)))
        self._catch_up(extend, state, batch, plan, ahead, early)
        self._pending.keep_latest(keys)
        del self._held[:-1]
        self._kv_only_since_output += 1
        self._writes += 1

    def _catch_up(
        self, extend: Rest, state: SpecRuntimeState, batch: Any, plan: CatchUp, ahead: int,
        early: bool = False,
    ) -> tuple[Any, Any]:  # fmt: skip
        self._draft.draft_runner.shared_read_done_event = None
        self._running = True
        try:
            return run_catch_up(self._draft, state, batch, plan, self._held, ahead, extend, early)
        finally:
            self._running = False

    def _give_up(self, error: Exception) -> None:
        self._shadow_drafts = None
        super()._give_up(error)


def _states(worker: Any, built: RuntimeStates) -> list[SpecRuntimeState]:
    """Return the runtime states, plus an extend-only state of many tokens for a draft that is a whole model."""
    states, graphs = built.by_steps, built.captured.graphs[built.launch.steps]
    sizes = None if graphs is None else [size for size in graphs if size <= WIDE_REQUESTS]
    widest = states[-1]  # of lookups, perhaps, whose graphs are for fewer requests
    wide_enough = widest.speculative_num_draft_tokens >= WIDE_TOKENS and (not sizes or has_graph(widest, max(sizes)))
    if wide_enough or sizes == [] or worker.speculative_algorithm.is_eagle():
        return states
    # Ranks with different states would catch up in different rounds.
    guard = Guard("wide-extend")
    wide = guard.attempt(draft_extend_state, worker, WIDE_TOKENS, sizes)
    return states if wide is None else [*states, wide]


def _write_rows(draft_input: Any, outcome: Any, plan: CatchUp, rows: Any, requests: int) -> None:
    for name in _OUTPUTS:
        value = getattr(outcome, name)
        if value is None:  # a STANDALONE draft has no hidden states
            continue
        if len(plan.rows) < requests:
            others = getattr(draft_input, name)
            if others is None:  # after a verify pass; the other part of the batch comes next
                others = value.new_zeros(requests, *value.shape[1:])
            value = others.index_copy(0, rows, value.to(others.dtype))
        setattr(draft_input, name, value)


@dataclass(frozen=True, slots=True)
class ShadowDrafts:
    """The draft's choice of the next token for some requests, with which a draft extend ends.

    The next zero-step round computes the target's token for that position anyway, so it shows whether the draft would
    have proposed that: shadow acceptance.
    """

    tokens: Tensor
    """[requests], int64, on the host; valid once the result of a later round has arrived."""
    places: dict[Hashable, int]
    """By request, its index in *tokens*."""

    @classmethod
    def of(cls, draft: Any, chosen: Tensor, keys: Sequence[Hashable]) -> ShadowDrafts:
        """Copy the draft's first choices, [requests, 1] in its own vocabulary, to the host; nothing waits for them."""
        tokens = chosen[:, 0]
        if draft.hot_token_id is not None:
            tokens = draft.hot_token_id[tokens]
        return cls(tokens.to("cpu", non_blocking=True), {key: place for place, key in enumerate(keys)})

    def attach(self, note: RoundNote, keys: Sequence[Hashable]) -> None:
        """Let the *note* on a zero-step round of requests *keys* say, once its result arrives, which were right."""
        pairs = [(row, self.places[key]) for row, key in enumerate(keys) if key in self.places]
        if pairs:
            note.arriving.append(
                lambda note, result: setattr(note, "shadow_accepts", shadow_accepts(self, pairs, result))
            )


def shadow_accepts(drafts: ShadowDrafts, pairs: Sequence[tuple[int, int]], result: Any) -> list[int]:
    """Return 1 for each request whose shadow draft is the target's token, else 0.

    *pairs* are a request's row in the batch of *result*, which has arrived, and its place among *drafts*. The list is
    empty where SGLang simulates acceptance (SGLANG_SIMULATE_ACC_LEN), because that ignores the drafts. A benchmark
    replaces this function to draw acceptance.
    """
    from sglang.srt.environ import envs

    if envs.SGLANG_SIMULATE_ACC_LEN.get() > 0:  # as SGLang's verify asks
        return []
    chosen, tokens = result.next_token_ids.tolist(), drafts.tokens.tolist()
    return [int(chosen[row] == tokens[place]) for row, place in pairs]
