"""One round of adaptive speculation, from choosing its steps to learning from its result.

SGLang's loop launches a decode round. With overlap scheduling, it processes the previous result while the round runs.
`Round` is what this package adds. Its methods are the events of a round, in order; the functions in ``seams/`` call
them. Its components do the work. Events that concern only one component go straight to it: room in a batch
(`capacity`), KV slot reservation (`reserve`), lengths on the host (`lengths`), attention kernels (`decode_kernel`,
`fa3`), and CUDA graph capture (`captures`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from sglang_adaptive.policy.vote import silent
from sglang_adaptive.runtime.controller import AdaptiveController
from sglang_adaptive.runtime.joint_steps import JointSteps
from sglang_adaptive.runtime.round_note import RoundNote
from sglang_adaptive.sglang_plugin import attention_dp, repairs
from sglang_adaptive.sglang_plugin.capacity import Capacity, slots_of_a_round
from sglang_adaptive.sglang_plugin.captures import Captures
from sglang_adaptive.sglang_plugin.exact.verify import ExactVerify
from sglang_adaptive.sglang_plugin.fast_path import launches
from sglang_adaptive.sglang_plugin.fast_path.chain_kernel import ChainKernel
from sglang_adaptive.sglang_plugin.fast_path.fa3 import Fa3
from sglang_adaptive.sglang_plugin.fast_path.flashinfer import DevicePlans
from sglang_adaptive.sglang_plugin.fast_path.isolation import Isolation
from sglang_adaptive.sglang_plugin.fast_path.kv_only import Chunks
from sglang_adaptive.sglang_plugin.fast_path.relay import Relay
from sglang_adaptive.sglang_plugin.fast_path.reserve_ahead import ReserveAhead
from sglang_adaptive.sglang_plugin.fast_path.short_draft import ShortDraft
from sglang_adaptive.sglang_plugin.fast_path.short_verify import ShortVerify
from sglang_adaptive.sglang_plugin.lookups.rounds import LookupRounds
from sglang_adaptive.sglang_plugin.notes import NOTE
from sglang_adaptive.sglang_plugin.reporting.metrics import AdaptiveMetrics, metrics_beside
from sglang_adaptive.sglang_plugin.reporting.proposed_drafts import Proposed
from sglang_adaptive.sglang_plugin.start.weight_updates import follow_update
from sglang_adaptive.sglang_plugin.state_builds import build_state, draft_parts_in_their_scope
from sglang_adaptive.sglang_plugin.zero_steps.choice import LikeliestTokens
from sglang_adaptive.sglang_plugin.zero_steps.decode_kernel import DecodeKernel
from sglang_adaptive.sglang_plugin.zero_steps.deferred_draft_extend import DeferredDraftExtend
from sglang_adaptive.sglang_plugin.zero_steps.inputs import ZeroStepInputs
from sglang_adaptive.sglang_plugin.zero_steps.left_for_later import LeftForLater
from sglang_adaptive.sglang_plugin.zero_steps.lengths import KnownLengths

if TYPE_CHECKING:
    from sglang_adaptive.sglang_plugin.audit_scheduler import Audits


class Round:
    """All rounds of one scheduler. A process has one `Round`, or none where steps are fixed."""

    def __init__(self, worker: Any, controller: AdaptiveController) -> None:
        """*worker* is SGLang's speculative worker, before it builds anything."""
        self.worker = worker
        self.controller = controller
        """Chooses the steps of each round, and passes its result to the policy."""
        self.captures = Captures()
        self.capacity = Capacity(controller)
        self.reserve = ReserveAhead(controller)
        self.isolation = Isolation()
        self.lengths = KnownLengths()
        self.inputs = ZeroStepInputs()
        self.decode_kernel = DecodeKernel()
        self.chain_kernel = ChainKernel()
        self.fa3 = Fa3()
        self.device_plans = DevicePlans()
        self.likeliest = LikeliestTokens()
        self.short_verify = ShortVerify()
        self.short_draft = ShortDraft()
        self.relay = Relay()
        self.chunks = Chunks(worker)
        self.deferred: DeferredDraftExtend | None = None
        """Postpones draft extends of zero-step rounds; None where they run in every round."""
        self.left_for_later: LeftForLater | None = None
        """The same object, or its counterpart for a block drafter."""
        self.ranks: JointSteps | None = None
        """Agrees on the steps with other ranks; None where this rank chooses by itself."""
        self.lookups: LookupRounds | None = None
        """Looks up drafts in the requests' own text; None where lookups are unavailable."""
        self.metrics: AdaptiveMetrics | None = None
        """Counts the tokens that lookups would have had accepted."""
        self.audits: Audits | None = None
        """Picks finished requests to decode again; does nothing unless the configuration asks for it."""
        self._resolving: RoundNote | None = None

    @cached_property
    def exact(self) -> ExactVerify | None:
        """Verifies drafts against sampled tokens; None where SGLang verifies every round."""
        return ExactVerify.where_it_can(self.worker)

    # -- start-up -------------------------------------------------------------------------------------------------

    def start(self, build: Callable[[Any], None], worker: Any) -> None:
        """Build the runtime states of all steps with SGLang's *build*, and decide which features the setup allows.

        SGLang builds the state of the launch steps in the draft's scope, and would build the others there too.
        """
        launches.ignore_alignment()
        with self.controller.states_postponed():
            build(worker)
            self.lookups = LookupRounds.where_it_can(worker, self.controller)
        self.ranks = attention_dp.joint_steps(self.controller)
        with self.captures.of_a_further_state():
            self.deferred = self.left_for_later = DeferredDraftExtend.where_it_can(worker, self.controller)

    def build_state(
        self, build: Callable[..., Any], worker: Any, speculative_num_steps: int, *args: Any, **kwargs: Any
    ) -> Any:
        """Build another runtime state with SGLang's *build*: each part in its own scope, with fewer model runs."""
        drafts_nothing = speculative_num_steps in self.controller.lookups
        with self.captures.of_a_further_state(), draft_parts_in_their_scope(worker._draft_worker, drafts_nothing):
            return build_state(build, worker, speculative_num_steps, *args, **kwargs)

    # -- before a round -------------------------------------------------------------------------------------------

    def with_ballot(self, row: Any, info: Any) -> Any:
        """Append this rank's ballot to its row of the gather; a rank in a prefill abstains."""
        if self.ranks is None:
            return row
        return attention_dp.appended(row, self.ranks.row(0 if info.is_extend_in_batch else info.num_tokens))

    def with_silence(self, row: Any) -> Any:
        """Append an abstaining ballot to the row of an absent rank."""
        return row if self.ranks is None else attention_dp.appended(row, silent(self.ranks.depths).row())

    def gathered(self, info: Any) -> None:
        """Set the steps of the next round from the ballots of all ranks."""
        if self.ranks is not None:
            self.ranks.take(attention_dp.rows(info, self.ranks))

    def count(self, count: Callable[[Any], None], batch: Any) -> None:
        """Let penalizers count the output tokens of a batch."""
        if self.exact is None:
            count(batch)
        else:
            self.exact.count(count, batch)

    def prefill_prepared(self, batch: Any) -> None:
        """Let penalizers count the tokens that requests of a prefill wrote before they were retracted."""
        if self.exact is not None:
            self.exact.count_again(batch)

    def draft_prefill(self, extend: Callable[..., Any], drafter: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        """Run the draft over a prompt; for every chunk but the last, only compute keys and values."""
        found = self.chunks.written(extend, drafter, batch, *args, **kwargs)
        return extend(drafter, batch, *args, **kwargs) if found is None else found

    def waits(self, scheduler: Any, batch: Any) -> bool:
        """Return whether pending results must be processed before *batch* is launched."""
        return self.exact is not None and self.exact.waits(scheduler, batch)

    def prepare(self, prepare: Callable[..., Any], scheduler: Any, batch: Any) -> Any:
        """Prepare the decode batch for a round that it has room for; tell lookups and the audit."""
        found = self.capacity.prepare(prepare, scheduler, batch)
        if found is None:  # SGLang skips this round
            return None
        if self.lookups is not None:
            self.lookups.expect(found)
        if self.audits is not None:
            self.audits.before_round(found)
        return found

    def resolve_lengths(self, resolve: Callable[..., None], future_map: Any, batch: Any, **kwargs: Any) -> None:
        """Copy request lengths to the host, without waiting where they are known or unused."""
        self.lengths.resolve(resolve, future_map, batch, partial(self._lengths_unread, batch), **kwargs)

    def _lengths_unread(self, batch: Any) -> bool:
        return batch.spec_info is not None and batch.seq_lens.is_cuda and self.device_plans.cover(self.worker, batch)

    def choose_steps(self, batch_size: int) -> None:
        """Choose the steps of the next round, and make them live."""
        self.controller.activate_step_by_batch(batch_size)

    def switched(self) -> None:
        """Keep SGLang's own log of switches short."""
        repairs.keep_latest_switch()

    # -- a round --------------------------------------------------------------------------------------------------

    def zero_step_input(self, build: Callable[..., Any], worker: Any, batch: Any) -> Any:
        """Begin a round that drafts nothing; return its verify input, one token per request."""
        self.lengths.expect(batch)
        if self.lookups is not None:
            self.lookups.begin(batch)
        if self.deferred is not None:
            self.deferred.before_verify()
        made = self.inputs.made(build, worker, batch)
        return repairs.with_draft_probs(made, worker, batch)

    def draft(self, draft: Callable[..., Any], drafter: Any, batch: Any, **kwargs: Any) -> Any:
        """Draft after running the postponed draft extends, or use drafts from lookups."""
        if self.deferred is not None:
            self.deferred.before_draft(drafter, batch)
        if self.lookups is not None and not batch.forward_mode.is_idle():
            self.lookups.begin(batch)
            if self.lookups.live:
                return self.lookups.drafted(drafter, batch, self.short_draft.linked)
        found = None
        if batch.seq_lens.is_cuda and not kwargs:
            found = self.short_draft.drafted(drafter, batch)
        return draft(drafter, batch, **kwargs) if found is None else found

    def verify(self, verify: Callable[..., Any], worker: Any, batch: Any, **kwargs: Any) -> Any:
        """Run the verify pass and accept drafts."""
        found = None
        if batch.seq_lens.is_cuda and kwargs.get("pp_proxy_tensors") is None:
            found = self.short_verify.verified(worker, batch)
        return verify(worker, batch, **kwargs) if found is None else found

    def sample(
        self, accept: Callable[..., Any], verify_input: Any, batch: Any, logits_output: Any, grammar_mask: Any = None,
        *more: Any, watermark_state: Any = None, **options: Any,
    ) -> Any:  # fmt: skip
        """Accept drafts and choose the tokens after them."""
        asked = (verify_input, batch, logits_output, grammar_mask, watermark_state)
        found = self.likeliest.chosen(*asked) if logits_output.next_token_logits.is_cuda else None
        if found is None and self.exact is not None:
            found = self.exact.accepted(*asked)
        if found is None:
            found = accept(
                verify_input, batch, logits_output, grammar_mask, *more, watermark_state=watermark_state, **options
            )
        if verify_input.tree_topk != 1 and batch.return_hidden_states and logits_output.hidden_states is not None:
            # SGLang returns a request's first rows, which in a tree are not those of the accepted path.
            logits_output.hidden_states = logits_output.hidden_states[found[2].clamp(min=0).flatten().long()]
        return found

    def draft_extend(self, extend: Callable[..., None], drafter: Any, batch: Any, result: Any, **kwargs: Any) -> None:
        """Run the draft over the accepted tokens, or postpone that at zero steps."""
        if self.deferred is not None and self.deferred.applies(drafter, batch):
            run = partial(self._extend, extend)
            self.deferred.after_verify(run, batch, result, self.note(result), **kwargs)
        else:
            self._extend(extend, drafter, batch, result, **kwargs)
        if self.lookups is None or batch.forward_mode.is_idle():
            return
        self.lookups.end(batch, result, self.note(result))
        if self.deferred is not None and self.lookups.verified(batch):
            self.deferred.after_lookups(batch, result)

    def _extend(self, extend: Callable[..., None], drafter: Any, batch: Any, result: Any, **kwargs: Any) -> None:
        if batch.seq_lens.is_cuda:
            if self.short_draft.extended(drafter, batch, result):
                return
            if batch.out_cache_loc is None:  # after a short verify; SGLang's draft extend needs them
                batch.out_cache_loc = slots_of_a_round(batch, drafter.speculative_num_draft_tokens)
        extend(drafter, batch, result, **kwargs)

    def launched(self, result: Any) -> None:
        """Note the number of requests on the round's largest rank."""
        if self.ranks is not None:
            self.note(result).largest_batch = self.ranks.largest

    # -- after a round --------------------------------------------------------------------------------------------

    def resolving(self, result: Any, batch: Any) -> None:
        """Complete the note of a decode result that has arrived, for `verified` and for statistics."""
        if result.speculative_num_draft_tokens is None:
            return
        note = self.note(result)
        note.context_tokens = None if batch.seq_lens_sum is None else int(batch.seq_lens_sum)
        note.requests = [req.rid for req in batch.reqs]
        note.audit = self.audits is not None and self.audits.has_all(batch.reqs)
        note.lengths = [req.kv.kv_committed_len for req in batch.reqs]
        note.arrived(result)
        self._resolving = note
        if result.cap_lens is None:
            result.cap_lens = Proposed(note.steps, len(batch.reqs))

    def verified(self, num_correct_drafts_per_req: Sequence[int], batch_size: int) -> None:
        """Pass the accepted drafts of the round being resolved to the controller."""
        note, self._resolving = self._resolving, None
        self.controller.on_verify_complete(num_correct_drafts_per_req, batch_size, note)

    def interrupted(self) -> None:
        """Do not time the next decode round, because a prefill, its launch or an idle batch precedes it.

        A prefill without CUDA graphs is launched kernel by kernel, which occupies the scheduler's thread for 20 ms or
        more. With overlap, the previous round's result is processed only after that.
        """
        self.controller.interrupt()

    def owned_length(self, owned: int, req: Any) -> int:
        """Exclude tokens with pending draft rows from what the prefix cache keeps when a request leaves."""
        return owned if self.left_for_later is None else self.left_for_later.owned_length(owned, req)

    def released(self, req: Any) -> None:
        """Audit the text of a request that has released its KV cache, if it is finished."""
        if self.audits is not None:
            self.audits.add(req)

    def short_rounds(self) -> dict[str, int]:
        """Return the number of shortened passes of each kind, for /server_info."""
        return {
            "verifies": self.short_verify.rounds,
            "accepts": self.short_verify.commit.rounds,
            "drafts": self.short_draft.drafts,
            "extends": self.short_draft.extends,
            "prefills": self.chunks.passes,
        }

    # -- beside rounds --------------------------------------------------------------------------------------------

    def note(self, result: Any) -> RoundNote:
        """Return the note on the round of *result*."""
        found: RoundNote | None = getattr(result, NOTE, None)
        if found is None:
            width = result.speculative_num_draft_tokens
            found = RoundNote(self.worker.speculative_num_steps if width is None else width - 1)
            setattr(result, NOTE, found)
        return found

    def weights_updated(self, result: Any, request: Any) -> None:
        """Recapture all graphs if requested, and trust the learned acceptance less."""
        follow_update(self.controller, result, request)
        if self.deferred is not None:
            self.deferred.renew()
        self.weights_change()

    def weights_change(self) -> None:
        """Stop auditing requests that were decoded with the old weights."""
        if self.audits is not None:
            self.audits.weights_change()

    def metrics_made(self, context: Any) -> None:
        """Create our metrics next to those of SGLang's *context*."""
        self.metrics = metrics_beside(context, self.controller)

    def metrics_set(self) -> None:
        """Update our metrics, if there are any."""
        if self.metrics is not None:
            self.metrics.update()
