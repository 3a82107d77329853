"""The rounds of a server: its stages, in the order in which they act, and what `Rounds` does at each event itself.

SGLang's loop launches a decode round. With overlap scheduling, it processes the previous result while the round runs.
At each of the functions that SGLang calls for that, the stages of a server may act (`stage.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from sglang_adaptive.policy.base import AdaptivePolicy
from sglang_adaptive.policy.choice import Source
from sglang_adaptive.policy.observation import RoundNote
from sglang_adaptive.runtime.controller import AdaptiveController
from sglang_adaptive.sglang_plugin.configuration import configuration
from sglang_adaptive.sglang_plugin.notes import note_of
from sglang_adaptive.sglang_plugin.repairs import Repairs
from sglang_adaptive.sglang_plugin.stage import Rest, Stage, Stages, current, set_current
from sglang_adaptive.sglang_plugin.stages.attention_dp import AgreedSteps
from sglang_adaptive.sglang_plugin.stages.audit_scheduler import Audits
from sglang_adaptive.sglang_plugin.stages.capacity import Capacity, ReserveAhead
from sglang_adaptive.sglang_plugin.stages.captures import Captures
from sglang_adaptive.sglang_plugin.stages.exact.verify import ExactVerify
from sglang_adaptive.sglang_plugin.stages.fast_path.chain_kernel import ChainKernel
from sglang_adaptive.sglang_plugin.stages.fast_path.decode_kernel import DecodeKernel
from sglang_adaptive.sglang_plugin.stages.fast_path.fa3 import ExtendMetadata, QueriesInPlace, VerifySchedule
from sglang_adaptive.sglang_plugin.stages.fast_path.flashinfer import DevicePlans
from sglang_adaptive.sglang_plugin.stages.fast_path.greedy import LikeliestTokens
from sglang_adaptive.sglang_plugin.stages.fast_path.kv_only import Chunks
from sglang_adaptive.sglang_plugin.stages.fast_path.launches import AlignedCopies, ignore_alignment
from sglang_adaptive.sglang_plugin.stages.fast_path.length_kernel import LengthKernel
from sglang_adaptive.sglang_plugin.stages.fast_path.relay import Isolation, Relay
from sglang_adaptive.sglang_plugin.stages.fast_path.short_passes import ShortDraft, ShortVerify
from sglang_adaptive.sglang_plugin.stages.lookups.rounds import LookupRounds, allow_lookups
from sglang_adaptive.sglang_plugin.stages.reporting import Metrics, ProposedDrafts
from sglang_adaptive.sglang_plugin.stages.zero_steps.deferred_draft_extend import DeferredDraftExtend
from sglang_adaptive.sglang_plugin.stages.zero_steps.inputs import KnownLengths, ZeroStepInputs
from sglang_adaptive.sglang_plugin.stages.zero_steps.left_for_later import DeferredAppend
from sglang_adaptive.sglang_plugin.start.controller import make_controller
from sglang_adaptive.sglang_plugin.start.state_builds import build_state, draft_parts_in_their_scope


def first_stages(rounds: Rounds) -> Iterator[Stage]:
    """Yield the stages that act from the launch on, in order: SGLang captures graphs before its setup is complete.

    A stage without a reason here shares no event with another, or does not depend on it.
    """
    yield Repairs()  # first, because it also corrects what the others return
    yield rounds.captures
    yield AlignedCopies()
    decode_kernel = DecodeKernel()
    yield ChainKernel()  # before the decode kernel, which makes a verify pass of zero steps look like a decode
    yield (plans := DevicePlans(decode_kernel))  # for the same reason, and it may leave nothing to plan
    yield decode_kernel
    yield QueriesInPlace()
    yield VerifySchedule()
    yield ExtendMetadata()
    yield LengthKernel()
    yield KnownLengths(partial(plans.reads_none, rounds.worker))


def stages_of_rounds(rounds: Rounds, looks_up: bool) -> Iterator[Stage]:
    """Yield the stages after `first_stages`, in order, if features and setup allow; all runtime states are built."""
    worker, controller = rounds.worker, rounds.controller
    short_draft, looked_up = ShortDraft(), lambda batch: False
    yield Metrics(controller)
    yield ProposedDrafts()
    yield Audits(controller, configuration().audit)  # around what prepares a batch: it needs the prepared one
    yield from AgreedSteps.where_it_can(controller)
    if looks_up:  # before the short draft, which its drafts replace; around capacity, like the audit
        yield (lookups := LookupRounds(worker, controller, short_draft.linked, options=configuration().options))
        looked_up = lookups.looked_up
    yield Capacity(controller)
    yield ReserveAhead(controller)
    yield Isolation()
    yield Relay()
    yield Chunks(worker)
    yield ZeroStepInputs()
    yield from DeferredDraftExtend.where_it_can(worker, controller, looked_up)  # before what extends at once
    yield from DeferredAppend.where_it_can(worker, controller)
    yield short_draft
    yield ShortVerify()  # after the short draft: only SGLang's extend needs the slots that it looks up
    yield LikeliestTokens()  # before the exact verify: greedy tokens need no sampler
    yield from ExactVerify.where_it_can(worker)


class Rounds(Stages):
    """All rounds of this process, a scheduler; there are none where steps are fixed.

    As the first stage, it lets the controller choose steps and learn from results.
    """

    def __init__(self, worker: Any, controller: AdaptiveController) -> None:
        """*worker* has not built anything yet."""
        super().__init__(worker, controller)
        self.captures = Captures()
        self._resolving: RoundNote | None = None
        self.use(first_stages(self))

    # -- start-up -------------------------------------------------------------------------------------------------

    def start(self, rest: Rest, worker: Any) -> None:
        """Build the runtime states of all steps, then make all stages.

        SGLang builds the state of the launch steps in the draft's scope, and would build the others there too.
        """
        ignore_alignment()
        rest(worker)
        looks_up = allow_lookups(worker, self.controller)
        self.controller.build_states()
        self.use([*self.stages, *stages_of_rounds(self, looks_up)])

    def build_state(self, rest: Rest, worker: Any, speculative_num_steps: int, *args: Any, **kwargs: Any) -> Any:
        """Build another runtime state, each part in its own scope."""
        drafts_nothing = self.controller.states.building_source is Source.LOOKUP
        with draft_parts_in_their_scope(worker._draft_worker, drafts_nothing):
            return build_state(rest, worker, speculative_num_steps, *args, **kwargs)

    # -- a round, in order ----------------------------------------------------------------------------------------

    def launch(self, rest: Rest, worker: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        """Launch a batch, and note what its round does: once its result arrives, something else may be live.

        A prefill without CUDA graphs is launched kernel by kernel, which occupies the scheduler's thread for 20 ms or
        more. With overlap, the previous round's result is processed only after that, so that round is not timed.
        """
        if batch.forward_mode.is_extend() or batch.is_extend_in_batch:
            self.controller.interrupt()
        result = rest(worker, batch, *args, **kwargs)
        note_of(result, self.controller.states)
        return result

    def choose_steps(self, rest: Rest, worker: Any, batch_size: int) -> None:
        self.controller.choose(batch_size)

    def zero_step_input(self, rest: Rest, worker: Any, batch: Any) -> Any:
        self.tell(Stage.before_zero_steps, batch)
        return rest(worker, batch)

    def draft(self, rest: Rest, drafter: Any, batch: Any, **kwargs: Any) -> Any:
        self.tell(Stage.before_draft, drafter, batch)
        return rest(drafter, batch, **kwargs)

    def draft_extend(self, rest: Rest, drafter: Any, batch: Any, result: Any, **kwargs: Any) -> None:
        rest(drafter, batch, result, **kwargs)
        self.tell(Stage.after_draft_extend, batch, result)

    def resolve(self, rest: Rest, processor: Any, result: Any, batch: Any) -> Any:
        """Complete the note of a decode result that has arrived, and let SGLang turn it into tokens."""
        if result.speculative_num_draft_tokens:
            note = note_of(result, self.controller.states)
            note.requests = [req.rid for req in batch.reqs]
            if self.controller.context_lengths.counts_next:
                note.lengths = [req.kv.kv_committed_len for req in batch.reqs]
            note.arrived(result)
            self._resolving = note
            self.tell(Stage.arrived, note, result, batch)
        return rest(processor, result, batch)

    def verified(self, rest: Rest, worker: Any, counts: Sequence[int], batch_size: int = 0) -> None:
        note, self._resolving = self._resolving, None
        self.controller.verified(counts, batch_size, note)

    # -- between rounds -------------------------------------------------------------------------------------------

    def interrupt(self, rest: Rest, *args: Any, **kwargs: Any) -> Any:
        """Do not time the next decode round, because a prefill or an idle batch precedes it."""
        self.controller.interrupt()
        return rest(*args, **kwargs)

    def begin_weight_update(self, rest: Rest, manager: Any, request: Any) -> Any:
        self.tell(Stage.weights_changed)
        return rest(manager, request)

    def update_weights(self, rest: Rest, manager: Any, request: Any) -> Any:
        """Update weights, recapture all graphs if requested, and trust the learned acceptance less."""
        result = rest(manager, request)
        recapture = result.success and getattr(request, "recapture_cuda_graph", False)
        self.controller.weights_updated(type(request).__name__, recapture)
        self.tell(Stage.weights_changed)
        return result


def begin(worker: Any, policy: AdaptivePolicy) -> Rounds:
    """Create the rounds of this process, with a controller for SGLang's *worker* that starts with *policy*."""
    assert not current(), "this process has its rounds already"
    made = Rounds(worker, make_controller(worker, policy))
    set_current(made)
    return made
