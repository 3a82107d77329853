"""The events of a server's rounds, at each of which a stage may act.

SGLang's functions are the events. A stage's method for an event gets *rest*, SGLang's function with all later stages
around it, and that function's arguments. It calls *rest* before, after or around its own work, or does SGLang's work in
another way and does not call it. Methods without *rest* are notices: all stages get them, in order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sglang_adaptive.policy.config import AdaptiveConfig
    from sglang_adaptive.runtime.round_note import RoundNote

Rest = Callable[..., Any]


class Stage:
    """A part of this package. It inherits a method for each event, which leaves the event to the rest."""

    # -- start-up -------------------------------------------------------------------------------------------------

    def capture_one(self, rest: Rest, backend: Any, *args: Any, **kwargs: Any) -> None:
        """Capture one CUDA graph."""
        rest(backend, *args, **kwargs)

    def freeze_gc(self, rest: Rest, enable: bool) -> Any:
        """Collect garbage before and after the capture of one kind of graph."""
        return rest(enable)

    def capture(self, rest: Rest, runner: Any, *args: Any, **kwargs: Any) -> None:
        """Capture all graphs of one kind."""
        rest(runner, *args, **kwargs)

    def capture_layers(self, rest: Rest, extend: Any, *args: Any, **kwargs: Any) -> None:
        """Capture the graphs of a multi-layer draft extend."""
        rest(extend, *args, **kwargs)

    def join_hidden_states(self, rest: Rest, hidden_states: Any) -> Any:
        """Join the hidden states of several layers at the end of a verify pass."""
        return rest(hidden_states)

    # -- before a round -------------------------------------------------------------------------------------------

    def update_running_batch(self, rest: Rest, scheduler: Any, batch: Any) -> Any:
        """Find out how many KV slots are free, then prepare the decode batch for its next round."""
        return rest(scheduler, batch)

    def alloc_reserve(self, rest: Rest) -> int:
        """Return how many extra slots a request needs for a round; a round limited to fewer steps needs fewer."""
        return rest()  # type: ignore[no-any-return]

    def prepare_for_decode(self, rest: Rest, batch: Any) -> None:
        """Reserve KV slots for the next round."""
        rest(batch)

    def decode_alloc_lens(self, rest: Rest, reqs: Any, *, reserve: int, page_size: int) -> Any:
        """Return the length up to which each request has slots after the reservation."""
        return rest(reqs, reserve=reserve, page_size=page_size)

    def local_row(self, rest: Rest, info: Any, *args: Any, **kwargs: Any) -> Any:
        """Build this rank's row of the gather."""
        return rest(info, *args, **kwargs)

    def absent_row(self, rest: Rest, info: Any, *args: Any, **kwargs: Any) -> Any:
        """Build the row of an absent rank."""
        return rest(info, *args, **kwargs)

    def gathered(self, rest: Rest, info: Any, *args: Any, **kwargs: Any) -> None:
        """Gather the rows of all ranks; the last gather before a round determines its steps."""
        rest(info, *args, **kwargs)

    def is_overlap_off(self, rest: Rest, scheduler: Any, batch: Any) -> bool:
        """Return whether pending results are processed before a batch is launched."""
        return rest(scheduler, batch)  # type: ignore[no-any-return]

    def count_penalties(self, rest: Rest, batch: Any) -> None:
        """Let penalizers count the tokens that a batch has generated."""
        rest(batch)

    def prepare_prefill(self, rest: Rest, batch: Any) -> None:
        """Prepare a prefill, including one of retracted requests."""
        rest(batch)

    def draft_prefill(self, rest: Rest, drafter: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        """Run the draft model over a prompt."""
        return rest(drafter, batch, *args, **kwargs)

    def isolate(self, rest: Rest, scheduler: Any, batch: Any, *, overlap: bool) -> Any:
        """Save the batch's state before its round, and restore it afterwards."""
        return rest(scheduler, batch, overlap=overlap)

    def read_relay(self, rest: Rest, indices: Any, chances: Any, chosen: Any, tokens: Any, hidden: Any) -> Any:
        """Read what the previous round left for this one."""
        return rest(indices, chances, chosen, tokens, hidden)

    def lengths_on_host(self, rest: Rest, future_map: Any, batch: Any, **kwargs: Any) -> None:
        """Copy request lengths to the host, without waiting if they are known or unused."""
        rest(future_map, batch, **kwargs)

    def switch(self, rest: Rest, worker: Any, state: Any) -> None:
        """Switch to other steps, and keep SGLang's log of such switches short."""
        rest(worker, state)

    # -- a round --------------------------------------------------------------------------------------------------

    def before_zero_steps(self, batch: Any) -> None:
        """Hear that a round of *batch* begins that drafts nothing."""

    def zero_step_input(self, rest: Rest, worker: Any, batch: Any) -> Any:
        """Prepare a zero-step round, which verifies one token per request."""
        return rest(worker, batch)

    def before_draft(self, drafter: Any, batch: Any) -> None:
        """Hear that a round of *batch* begins that drafts."""

    def draft(self, rest: Rest, drafter: Any, batch: Any, **kwargs: Any) -> Any:
        """Draft, and return the verify input."""
        return rest(drafter, batch, **kwargs)

    def verify(self, rest: Rest, worker: Any, batch: Any, **kwargs: Any) -> Any:
        """Verify the drafts of a round."""
        return rest(worker, batch, **kwargs)

    def sample(self, rest: Rest, verify_input: Any, batch: Any, logits_output: Any, mask: Any, watermark: Any) -> Any:
        """Accept drafts, and choose the token after them."""
        return rest(verify_input, batch, logits_output, mask, watermark)

    def draft_extend(self, rest: Rest, drafter: Any, batch: Any, result: Any, **kwargs: Any) -> None:
        """Run the draft model over the accepted tokens."""
        rest(drafter, batch, result, **kwargs)

    def after_draft_extend(self, batch: Any, result: Any) -> None:
        """Hear that the draft extend of *batch* has run, or was postponed."""

    def write_relay(self, rest: Rest, future_map: Any, indices: Any, payload: Any) -> None:
        """Write what the next round starts from."""
        rest(future_map, indices, payload)

    def launch(self, rest: Rest, worker: Any, *args: Any, **kwargs: Any) -> Any:
        """Launch a batch of any kind."""
        return rest(worker, *args, **kwargs)

    # -- attention in a round -------------------------------------------------------------------------------------

    def small_copy(self, rest: Rest, dsts: Sequence[Any], srcs: Sequence[Any]) -> bool:
        """Run several small copies in one kernel launch."""
        return rest(dsts, srcs)  # type: ignore[no-any-return]

    def triton_metadata(self, rest: Rest, backend: Any, forward_batch: Any, *args: Any, **kwargs: Any) -> None:
        """Build the metadata of a pass on SGLang's Triton backend."""
        rest(backend, forward_batch, *args, **kwargs)

    def plan(self, rest: Rest, backend: Any, forward_batch: Any, *args: Any, **kwargs: Any) -> None:
        """Plan a FlashInfer pass that runs without a graph."""
        rest(backend, forward_batch, *args, **kwargs)

    def plan_replay(self, rest: Rest, backend: Any, forward_batch: Any, in_capture: bool = False) -> None:
        """Plan a FlashInfer pass that is captured or replayed."""
        rest(backend, forward_batch, in_capture)

    def plan_draft_replay(self, rest: Rest, backend: Any, forward_batch: Any, in_capture: bool = False) -> None:
        """Plan all passes of a FlashInfer draft that is captured or replayed."""
        rest(backend, forward_batch, in_capture)

    def forward_extend(self, rest: Rest, backend: Any, *args: Any, **kwargs: Any) -> Any:
        """Run attention in an extend or verify pass."""
        return rest(backend, *args, **kwargs)

    def fa3_attention(self, rest: Rest, backend: Any, *args: Any, **kwargs: Any) -> Any:
        """Run attention with fa3."""
        return rest(backend, *args, **kwargs)

    def fa3_kernel(self, rest: Rest, *args: Any, **kwargs: Any) -> Any:
        """Call fa3's kernel."""
        return rest(*args, **kwargs)

    def fa3_metadata(self, rest: Rest, backend: Any, forward_batch: Any, *args: Any, **kwargs: Any) -> None:
        """Build fa3's metadata before a replay."""
        rest(backend, forward_batch, *args, **kwargs)

    def fa3_decode_metadata(self, rest: Rest, *args: Any, **kwargs: Any) -> None:
        """Fill in fa3's metadata for a decode, draft or verify pass."""
        rest(*args, **kwargs)

    def fa3_extend_metadata(self, rest: Rest, **kwargs: Any) -> None:
        """Fill in fa3's metadata inside the graph of the draft extend."""
        rest(**kwargs)

    def replay_extend(self, rest: Rest, graphs: Any, *args: Any, **kwargs: Any) -> Any:
        """Replay the graph of a draft extend."""
        return rest(graphs, *args, **kwargs)

    # -- after a round --------------------------------------------------------------------------------------------

    def arrived(self, note: RoundNote, result: Any, batch: Any) -> None:
        """Hear that the decode *result* of *batch* is on the host; complete the *note* on its round."""

    def end_of_text(self, rest: Rest, req: Any, *args: Any, **stop: Any) -> int | None:
        """Return where a request's text ends when its latest tokens contain a stop string or regex match."""
        return rest(req, *args, **stop)  # type: ignore[no-any-return]

    def owned_length(self, rest: Rest, req: Any) -> int:
        """Return how many tokens of a finished or retracted request the prefix cache may keep."""
        return rest(req)  # type: ignore[no-any-return]

    def release(self, rest: Rest, req: Any, *args: Any, **kwargs: Any) -> None:
        """Free the KV slots of a finished or retracted request."""
        rest(req, *args, **kwargs)

    # -- beside rounds --------------------------------------------------------------------------------------------

    def weights_changed(self) -> None:
        """Hear that a weight update begins or has ended."""

    def reconfigured(self, config: AdaptiveConfig) -> None:
        """Follow a new configuration from the next round on."""

    def shortened(self) -> Mapping[str, int]:
        """Return the number of passes that this stage has shortened, by their names in /server_info."""
        return {}

    def report_decode(self, rest: Rest, reporter: Any, *args: Any, **kwargs: Any) -> None:
        """Log and count the decode rounds of an interval."""
        rest(reporter, *args, **kwargs)

    def init_metrics(self, rest: Rest, scheduler: Any, *args: Any, **kwargs: Any) -> None:
        """Create the metrics of a scheduler."""
        rest(scheduler, *args, **kwargs)

    def log_stats(self, rest: Rest, *args: Any, **kwargs: Any) -> None:
        """Set the metrics."""
        rest(*args, **kwargs)
