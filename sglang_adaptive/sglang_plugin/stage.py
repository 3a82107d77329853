"""The events of a server's rounds, at each of which a stage may act.

SGLang's functions are the events. A stage's method for an event gets *rest*, SGLang's function with all later stages
around it, and that function's arguments. It calls *rest* before, after or around its own work, or does SGLang's work in
another way and does not call it. Methods without *rest* are notices: all stages get them, in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from sglang_adaptive.policy.config import AdaptiveConfig
    from sglang_adaptive.policy.observation import RoundNote
    from sglang_adaptive.runtime.controller import AdaptiveController

Rest = Callable[..., Any]


class Stage:
    """A part of this package, which overrides the methods of the events at which it acts; others are never called."""

    # -- start-up -------------------------------------------------------------------------------------------------

    def start(self, rest: Rest, worker: Any) -> Any:
        """Build the runtime states for all steps, and get ready for rounds."""

    def build_state(self, rest: Rest, worker: Any, speculative_num_steps: int, *args: Any, **kwargs: Any) -> Any:
        """Build one runtime state and its graphs, each part in its own scope."""

    def capture_one(self, rest: Rest, backend: Any, *args: Any, **kwargs: Any) -> Any:
        """Capture one CUDA graph."""

    def freeze_gc(self, rest: Rest, enable: bool) -> Any:
        """Collect garbage before and after the capture of one kind of graph."""

    def capture(self, rest: Rest, graphs: Any, *args: Any, **kwargs: Any) -> Any:
        """Capture all graphs of one kind."""

    def join_hidden_states(self, rest: Rest, hidden_states: Any) -> Any:
        """Join the hidden states of several layers at the end of a verify pass."""

    # -- before a round -------------------------------------------------------------------------------------------

    def update_running_batch(self, rest: Rest, scheduler: Any, batch: Any) -> Any:
        """Find out how many KV slots are free, then prepare the decode batch for its next round."""

    def alloc_reserve(self, rest: Rest) -> Any:
        """Return how many extra slots a request needs for a round; a round limited to fewer steps needs fewer."""

    def prepare_for_decode(self, rest: Rest, batch: Any) -> Any:
        """Reserve KV slots for the next round."""

    def decode_alloc_lens(self, rest: Rest, reqs: Any, *, reserve: int, page_size: int) -> Any:
        """Return the length up to which each request has slots after the reservation."""

    def local_row(self, rest: Rest, info: Any, *args: Any, **kwargs: Any) -> Any:
        """Build this rank's row of the gather."""

    def absent_row(self, rest: Rest, info: Any, *args: Any, **kwargs: Any) -> Any:
        """Build the row of an absent rank."""

    def gathered(self, rest: Rest, info: Any, *args: Any, **kwargs: Any) -> Any:
        """Gather the rows of all ranks; the last gather before a round determines its steps."""

    def is_overlap_off(self, rest: Rest, scheduler: Any, batch: Any, last_batch: Any) -> Any:
        """Return whether pending results are processed before a batch is launched."""

    def count_penalties(self, rest: Rest, batch: Any) -> Any:
        """Let penalizers count the tokens that a batch has generated."""

    def prepare_prefill(self, rest: Rest, batch: Any) -> Any:
        """Prepare a prefill, including one of retracted requests."""

    def draft_prefill(self, rest: Rest, drafter: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        """Run the draft model over a prompt."""

    def isolate(self, rest: Rest, scheduler: Any, batch: Any, *, overlap: bool) -> Any:
        """Save the batch's state before its round, and restore it afterwards."""

    def read_relay(self, rest: Rest, indices: Any, chances: Any, chosen: Any, tokens: Any, hidden: Any) -> Any:
        """Read what the previous round left for this one."""

    def lengths_on_host(self, rest: Rest, future_map: Any, batch: Any, **kwargs: Any) -> Any:
        """Copy request lengths to the host, without waiting if they are known or unused."""

    # -- a round --------------------------------------------------------------------------------------------------

    def launch(self, rest: Rest, worker: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        """Launch a batch of any kind."""

    def choose_steps(self, rest: Rest, worker: Any, batch_size: int) -> Any:
        """Choose the steps of the next round."""

    def switch(self, rest: Rest, worker: Any, state: Any) -> Any:
        """Switch to other steps, and keep SGLang's list of such switches short."""

    def before_zero_steps(self, batch: Any) -> None:
        """Hear that a round of *batch* begins that drafts nothing."""

    def zero_step_input(self, rest: Rest, worker: Any, batch: Any) -> Any:
        """Prepare a zero-step round, which verifies one token per request."""

    def before_draft(self, drafter: Any, batch: Any) -> None:
        """Hear that a round of *batch* begins that drafts."""

    def draft(self, rest: Rest, drafter: Any, batch: Any, **kwargs: Any) -> Any:
        """Draft, and return the verify input."""

    def verify(self, rest: Rest, worker: Any, batch: Any, **kwargs: Any) -> Any:
        """Verify the drafts of a round."""

    def sample(
        self, rest: Rest, verify_input: Any, batch: Any, logits_output: Any, grammar_mask: Any = None, *more: Any,
        **options: Any,
    ) -> Any:  # fmt: skip
        """Accept drafts, and choose the token after them."""

    def draft_extend(self, rest: Rest, drafter: Any, batch: Any, result: Any, **kwargs: Any) -> Any:
        """Run the draft model over the accepted tokens."""

    def after_draft_extend(self, batch: Any, result: Any) -> None:
        """Hear that the draft extend of *batch* has run, or was postponed."""

    def write_relay(self, rest: Rest, future_map: Any, indices: Any, payload: Any) -> Any:
        """Write what the next round starts from."""

    # -- attention in a round -------------------------------------------------------------------------------------

    def small_copy(self, rest: Rest, dsts: Sequence[Any], srcs: Sequence[Any]) -> Any:
        """Run several small copies in one kernel launch."""

    def triton_metadata(self, rest: Rest, backend: Any, forward_batch: Any, *args: Any, **kwargs: Any) -> Any:
        """Build the metadata of a pass on SGLang's Triton backend."""

    def plan(self, rest: Rest, backend: Any, forward_batch: Any, *args: Any, **kwargs: Any) -> Any:
        """Plan a FlashInfer pass that runs without a graph."""

    def plan_replay(self, rest: Rest, backend: Any, forward_batch: Any, in_capture: bool = False) -> Any:
        """Plan a FlashInfer pass that is captured or replayed."""

    def plan_draft_replay(self, rest: Rest, backend: Any, forward_batch: Any, in_capture: bool = False) -> Any:
        """Plan all passes of a FlashInfer draft that is captured or replayed."""

    def forward_extend(self, rest: Rest, backend: Any, *args: Any, **kwargs: Any) -> Any:
        """Run attention in an extend or verify pass."""

    def fa3_attention(self, rest: Rest, backend: Any, *args: Any, **kwargs: Any) -> Any:
        """Run attention with fa3."""

    def fa3_kernel(self, rest: Rest, *args: Any, **kwargs: Any) -> Any:
        """Call fa3's kernel."""

    def fa3_metadata(self, rest: Rest, backend: Any, forward_batch: Any, *args: Any, **kwargs: Any) -> Any:
        """Build fa3's metadata before a replay."""

    def fa3_decode_metadata(self, rest: Rest, *args: Any, **kwargs: Any) -> Any:
        """Fill in fa3's metadata for a decode, draft or verify pass."""

    def fa3_extend_metadata(self, rest: Rest, **kwargs: Any) -> Any:
        """Fill in fa3's metadata inside the graph of the draft extend."""

    def replay_extend(self, rest: Rest, graphs: Any, *args: Any, **kwargs: Any) -> Any:
        """Replay the graph of a draft extend."""

    # -- after a round --------------------------------------------------------------------------------------------

    def resolve(self, rest: Rest, processor: Any, result: Any, batch: Any) -> Any:
        """Turn a decode result that has arrived into tokens."""

    def arrived(self, note: RoundNote, result: Any, batch: Any) -> None:
        """Hear that the decode *result* of *batch* is on the host; complete the *note* on its round."""

    def verified(self, rest: Rest, worker: Any, counts: Sequence[int], batch_size: int = 0) -> Any:
        """Pass what a round accepted to the controller."""

    def interrupt(self, rest: Rest, *args: Any, **kwargs: Any) -> Any:
        """Process the result of a batch that is not a decode round."""

    def end_of_text(self, rest: Rest, req: Any, *args: Any, **stop: Any) -> Any:
        """Return where a request's text ends when its latest tokens contain a stop string or regex match."""

    def owned_length(self, rest: Rest, req: Any) -> Any:
        """Return how many tokens of a finished or retracted request the prefix cache may keep."""

    def release(self, rest: Rest, req: Any, *args: Any, **kwargs: Any) -> Any:
        """Free the KV slots of a finished or retracted request."""

    # -- beside rounds --------------------------------------------------------------------------------------------

    def begin_weight_update(self, rest: Rest, manager: Any, request: Any) -> Any:
        """Begin a weight update that takes several messages."""

    def update_weights(self, rest: Rest, manager: Any, request: Any) -> Any:
        """Update weights; graphs keep the addresses of weights, and acceptance was measured with the old ones."""

    def flush_cache(self, rest: Rest, scheduler: Any, *args: Any, **kwargs: Any) -> Any:
        """Empty the prefix cache, unless requests run; return whether it is empty."""

    def weights_changed(self) -> None:
        """Hear that a weight update begins or has ended."""

    def reconfigured(self, config: AdaptiveConfig) -> None:
        """Follow a new configuration from the next round on."""

    def report_decode(self, rest: Rest, reporter: Any, *args: Any, **kwargs: Any) -> Any:
        """Log and count the decode rounds of an interval."""

    def init_metrics(self, rest: Rest, scheduler: Any, *args: Any, **kwargs: Any) -> Any:
        """Create the metrics of a scheduler."""

    def log_stats(self, rest: Rest, *args: Any, **kwargs: Any) -> Any:
        """Set the metrics."""

    def shortened(self) -> Mapping[str, int]:
        """Return how many passes this stage has shortened, by their names in /server_info, which asks; no event."""
        return {}


Event = Callable[..., Any]
"""A method of `Stage`."""
S = TypeVar("S", bound=Stage)


class Stages(Stage):
    """The stages of a server, in the order in which they act. It is the first one itself."""

    def __init__(self, worker: Any, controller: AdaptiveController) -> None:
        """*worker* is SGLang's speculative worker."""
        self.worker, self.controller = worker, controller

    def use(self, stages: Iterable[Stage]) -> None:
        """Let *stages* act from now on, in this order."""
        self.stages = tuple(stages)
        self._acting = cache(self._methods)
        self.around = cache(self._around)
        """Called with an event and SGLang's function; returns that with the stages that act at the event around it."""

    def _methods(self, event: Event) -> list[Event]:
        """Return the methods of the stages that act at *event*, in order."""
        acting = [stage for stage in (self, *self.stages) if getattr(type(stage), event.__name__) is not event]
        return [getattr(stage, event.__name__) for stage in acting]

    def _around(self, event: Event, original: Rest) -> Rest:
        for act in reversed(self._acting(event)):
            original = partial(act, original)
        return original

    def tell(self, notice: Event, *args: Any) -> None:
        """Give the stages *notice*, in order."""
        for act in self._acting(notice):
            act(*args)

    def shortened(self) -> Mapping[str, int]:
        """Return how many passes the stages have shortened, by name."""
        return {name: passes for stage in self.stages for name, passes in stage.shortened().items()}

    def of(self, kind: type[S]) -> list[S]:
        """Return the stages of this *kind*: one, or none where it cannot act."""
        return [stage for stage in self.stages if isinstance(stage, kind)]


# Those of a scheduler process, which hooks find here, because SGLang's functions do not carry them.

_stages: Stages | None = None


def current() -> Stages | None:
    """Return the stages of this process; None where speculation is static."""
    return _stages


def set_current(made: Stages | None) -> None:
    """Set the stages of this process, or None. Tests replace them; a server does not."""
    global _stages
    _stages = made
