"""One round of adaptive speculation, from choosing its steps to learning from its result.

SGLang's loop launches a decode round. With overlap scheduling, it processes the previous result while the round runs.
At each of the functions that SGLang calls for that, the stages of a server may act (`stage.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

from sglang_adaptive.policy.base import AdaptivePolicy
from sglang_adaptive.runtime.controller import AdaptiveController
from sglang_adaptive.runtime.round_note import RoundNote
from sglang_adaptive.sglang_plugin.configuration import configuration
from sglang_adaptive.sglang_plugin.current import current, use
from sglang_adaptive.sglang_plugin.notes import note_of
from sglang_adaptive.sglang_plugin.repairs import Repairs
from sglang_adaptive.sglang_plugin.stage import Stage
from sglang_adaptive.sglang_plugin.stages.attention_dp import AgreedSteps
from sglang_adaptive.sglang_plugin.stages.audit_scheduler import Audits
from sglang_adaptive.sglang_plugin.stages.capacity import Capacity
from sglang_adaptive.sglang_plugin.stages.captures import Captures
from sglang_adaptive.sglang_plugin.stages.exact.verify import ExactVerify
from sglang_adaptive.sglang_plugin.stages.fast_path.chain_kernel import ChainKernel
from sglang_adaptive.sglang_plugin.stages.fast_path.choice import LikeliestTokens
from sglang_adaptive.sglang_plugin.stages.fast_path.decode_kernel import DecodeKernel
from sglang_adaptive.sglang_plugin.stages.fast_path.fa3 import ExtendMetadata, QueriesInPlace, VerifySchedule
from sglang_adaptive.sglang_plugin.stages.fast_path.flashinfer import DevicePlans
from sglang_adaptive.sglang_plugin.stages.fast_path.isolation import Isolation
from sglang_adaptive.sglang_plugin.stages.fast_path.kv_only import Chunks
from sglang_adaptive.sglang_plugin.stages.fast_path.launches import AlignedCopies, ignore_alignment
from sglang_adaptive.sglang_plugin.stages.fast_path.length_kernel import LengthKernel
from sglang_adaptive.sglang_plugin.stages.fast_path.relay import Relay
from sglang_adaptive.sglang_plugin.stages.fast_path.reserve_ahead import ReserveAhead
from sglang_adaptive.sglang_plugin.stages.fast_path.short_draft import ShortDraft
from sglang_adaptive.sglang_plugin.stages.fast_path.short_verify import ShortVerify
from sglang_adaptive.sglang_plugin.stages.lookups.rounds import LookupRounds, allow_lookups
from sglang_adaptive.sglang_plugin.stages.reporting.finished_texts import FinishedTexts
from sglang_adaptive.sglang_plugin.stages.reporting.metrics import Metrics
from sglang_adaptive.sglang_plugin.stages.reporting.proposed_drafts import ProposedDrafts
from sglang_adaptive.sglang_plugin.stages.zero_steps.deferred_append import DeferredAppend
from sglang_adaptive.sglang_plugin.stages.zero_steps.deferred_draft_extend import DeferredDraftExtend
from sglang_adaptive.sglang_plugin.stages.zero_steps.inputs import ZeroStepInputs
from sglang_adaptive.sglang_plugin.stages.zero_steps.lengths import KnownLengths
from sglang_adaptive.sglang_plugin.start.controller import make_controller
from sglang_adaptive.sglang_plugin.start.state_builds import build_state, draft_parts_in_their_scope
from sglang_adaptive.sglang_plugin.start.weight_updates import follow_update

S = TypeVar("S", bound=Stage)


def first_stages(now: Round) -> Iterator[Stage]:
    """Yield the stages that act from the launch on, in order: SGLang captures graphs before its setup is complete."""
    yield Repairs()  # around all others: it also corrects what they return
    yield now.captures
    yield AlignedCopies()
    yield ChainKernel()  # before the decode kernel, after which a zero-step round does not look like a verify pass
    decode_kernel = DecodeKernel()
    yield (plans := DevicePlans(decode_kernel))  # the same
    yield decode_kernel
    yield QueriesInPlace()  # before the schedule, which it does not need
    yield VerifySchedule()
    yield ExtendMetadata()
    yield LengthKernel()
    yield KnownLengths(partial(plans.reads_none, now.worker))


def stages_of_rounds(now: Round, looks_up: bool) -> Iterator[Stage]:
    """Yield the stages that act after those, in order, as far as the features and the built runtime states allow them.

    The first one acts first, and may leave nothing for the others and SGLang.
    """
    worker, controller = now.worker, now.controller
    short_draft, looked_up = ShortDraft(), _never
    yield Metrics(controller)
    yield ProposedDrafts()
    yield Audits(controller, configuration().audit)  # before what prepares a batch, because it reads the result
    yield FinishedTexts(controller)
    yield from AgreedSteps.where_it_can(worker, controller)
    if looks_up:  # before the short draft, whose drafts it replaces, and before what asks whether it did
        yield (lookups := LookupRounds(worker, controller, short_draft.linked))
        looked_up = lookups.verified
    yield Capacity(controller)
    yield ReserveAhead(controller)
    yield Isolation()
    yield Relay()
    yield Chunks(worker)
    yield ZeroStepInputs()
    yield from DeferredDraftExtend.where_it_can(worker, controller, looked_up)  # before what runs an extend at once
    yield from DeferredAppend.where_it_can(worker, controller)
    yield short_draft
    yield ShortVerify()  # after the short draft, whose extend needs no slots
    yield LikeliestTokens()  # before the exact verify, which would draw what it can read
    yield from ExactVerify.where_it_can(worker)


_EVENTS = [of for name, of in vars(Stage).items() if not name.startswith("_")]
_NOTHING = Stage()


def _never(batch: Any) -> bool:
    return False


class Round:
    """All rounds of one scheduler. A process has one `Round`, or none where steps are fixed."""

    def __init__(self, worker: Any, controller: AdaptiveController) -> None:
        """*worker* is SGLang's speculative worker, before it builds anything."""
        self.worker = worker
        self.controller = controller
        """Chooses the steps of each round, and passes its result to the policy."""
        self.captures = Captures()
        self._resolving: RoundNote | None = None
        self.use(first_stages(self))

    # -- stages ---------------------------------------------------------------------------------------------------

    def use(self, stages: Iterable[Stage]) -> None:
        """Let *stages* act from now on, in this order."""
        self.stages = tuple(stages)
        self._acting: dict[Callable[..., Any], tuple[Callable[..., Any], list[Callable[..., Any]]]] = {}
        """By event, the first stage's method and those of the others, last one first; without those that do nothing."""
        for of in _EVENTS:
            acting = [stage for stage in self.stages if getattr(type(stage), of.__name__) is not of]
            first, *others = [getattr(stage, of.__name__) for stage in acting or (_NOTHING,)]
            self._acting[of] = first, others[::-1]

    def run(self, of: Callable[..., Any], original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Let the stages act at *of*, an event of `Stage`; SGLang's *original* runs as the last of them."""
        first, others = self._acting[of]
        for act in others:
            original = partial(act, original)
        return first(original, *args, **kwargs)

    def tell(self, of: Callable[..., Any], *args: Any) -> None:
        """Give the stages the notice *of*."""
        first, others = self._acting[of]
        first(*args)
        for act in reversed(others):
            act(*args)

    def of(self, kind: type[S]) -> list[S]:
        """Return the stages of this *kind*: one, or none where it cannot act."""
        return [stage for stage in self.stages if isinstance(stage, kind)]

    # -- start-up -------------------------------------------------------------------------------------------------

    def start(self, build: Callable[[Any], None], worker: Any) -> None:
        """Build the runtime states of all steps with SGLang's *build*, then make all stages.

        SGLang builds the state of the launch steps in the draft's scope, and would build the others there too.
        """
        ignore_alignment()
        with self.controller.states_postponed():
            build(worker)
            looks_up = allow_lookups(worker, self.controller)
        with self.captures.of_a_further_state():
            self.use([*self.stages, *stages_of_rounds(self, looks_up)])

    def build_state(
        self, build: Callable[..., Any], worker: Any, speculative_num_steps: int, *args: Any, **kwargs: Any
    ) -> Any:
        """Build another runtime state with SGLang's *build*: each part in its own scope, with fewer model runs."""
        drafts_nothing = speculative_num_steps in self.controller.lookups
        with self.captures.of_a_further_state(), draft_parts_in_their_scope(worker._draft_worker, drafts_nothing):
            return build_state(build, worker, speculative_num_steps, *args, **kwargs)

    # -- a round --------------------------------------------------------------------------------------------------

    def zero_step_input(self, build: Callable[..., Any], worker: Any, batch: Any) -> Any:
        """Begin a round that drafts nothing; return its verify input, one token per request."""
        self.tell(Stage.before_zero_steps, batch)
        return self.run(Stage.zero_step_input, build, worker, batch)

    def draft(self, draft: Callable[..., Any], drafter: Any, batch: Any, **kwargs: Any) -> Any:
        """Begin a round that drafts; return its verify input."""
        self.tell(Stage.before_draft, drafter, batch)
        return self.run(Stage.draft, draft, drafter, batch, **kwargs)

    def sample(
        self, accept: Callable[..., Any], verify_input: Any, batch: Any, logits_output: Any, grammar_mask: Any = None,
        *more: Any, watermark_state: Any = None, **options: Any,
    ) -> Any:  # fmt: skip
        """Accept drafts and choose the tokens after them, once the target has verified the drafts."""

        def accept_as_asked(*asked: Any) -> Any:
            given = verify_input, batch, logits_output, grammar_mask, *more
            return accept(*given, watermark_state=watermark_state, **options)

        asked = verify_input, batch, logits_output, grammar_mask, watermark_state
        return self.run(Stage.sample, accept_as_asked, *asked)

    def draft_extend(self, extend: Callable[..., None], drafter: Any, batch: Any, result: Any, **kwargs: Any) -> None:
        """Run the draft over the accepted tokens, or postpone that at zero steps."""
        self.run(Stage.draft_extend, extend, drafter, batch, result, **kwargs)
        self.tell(Stage.after_draft_extend, batch, result)

    def resolving(self, result: Any, batch: Any) -> None:
        """Complete the note of a decode result that has arrived, for `verified` and for statistics."""
        if result.speculative_num_draft_tokens:
            note = note_of(result, self.worker)
            note.context_tokens = batch.seq_lens_sum and int(batch.seq_lens_sum)
            note.requests = [req.rid for req in batch.reqs]
            note.lengths = [req.kv.kv_committed_len for req in batch.reqs]
            note.arrived(result)
            self._resolving = note
            self.tell(Stage.arrived, note, result, batch)

    def verified(self, num_correct_drafts_per_req: Sequence[int], batch_size: int) -> None:
        """Pass the accepted drafts of the round being resolved to the controller."""
        note, self._resolving = self._resolving, None
        self.controller.on_verify_complete(num_correct_drafts_per_req, batch_size, note)

    # -- between rounds -------------------------------------------------------------------------------------------

    def interrupted(self) -> None:
        """Do not time the next decode round, because a prefill, its launch or an idle batch precedes it.

        A prefill without CUDA graphs is launched kernel by kernel, which occupies the scheduler's thread for 20 ms or
        more. With overlap, the previous round's result is processed only after that.
        """
        self.controller.interrupt()

    def weights_updated(self, result: Any, request: Any) -> None:
        """Recapture all graphs if requested, and trust the learned acceptance less."""
        follow_update(self.controller, result, request)
        self.tell(Stage.weights_changed)


def begin(worker: Any, policy: AdaptivePolicy) -> Round:
    """Create the round of this process, with a controller for SGLang's *worker* that starts with *policy*."""
    assert current() is None, "this process has a round already"
    made = Round(worker, make_controller(worker, policy))
    use(made)
    return made
