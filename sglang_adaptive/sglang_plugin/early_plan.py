"""Plan a chain's verify while its draft runs.

A plan is the copy of a batch into the verify graph's static inputs and the attention metadata made from it. For a
chain on fa3 it needs the lengths, the request table and the slots that the round writes. All three are final before
the draft's first forward, so the plan can run beside it on a stream of its own::

    forward stream   ... verify | prepare_for_draft | draft forwards | build chain |         | verify graph
                                                   \\ ready                        done /
    plan stream                                     wait | slots, lengths, page table --'

What the draft makes, its tokens and their positions, is copied too early here, and SGLang copies it again on the
forward stream right before the replay. ``ready`` lies after the previous verify, which therefore no longer reads what
the plan writes. SGLang also lets graphs share input buffers of one name and size; the draft's graph would then read
what the plan of the verify has just overwritten, so the target's buffers are kept apart (`keep_apart`).

Where any of this is not certain, the round is planned on the forward stream, as without a plan stream.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager
from typing import Any

from sglang_adaptive.sglang_plugin.plan_obstacles import obstacle

logger = logging.getLogger(__name__)

PLANNED_INPUTS = frozenset(
    {
        "input_ids",
        "positions",
        "out_cache_loc",
        "req_pool_indices",
        "seq_lens",
        "seq_lens_cpu",
        "mrope_positions",
        "num_token_non_padded",
        "global_num_tokens_gpu",
        "global_num_tokens_for_logprob_gpu",
    }
)
"""Static inputs of the target's graph that a plan writes."""


class EarlyPlan:
    """The plan stream, and the round whose draft was prepared last."""

    def __init__(self) -> None:
        self._cuda: Any = None
        self._stream = self._ready = self._done = None
        self._slots: Any = None
        self._said: set[str] = set()
        self._off = False

    def note(self, slots: Any) -> None:
        """The forward stream holds all that the verify's plan needs; *slots* is SGLang's KVLocPlan, or None."""
        self._slots = None
        if self._off or slots is None or not slots.seq_lens.is_cuda:
            return
        if self._cuda is None:
            import torch

            self._cuda = torch.cuda
            self._stream, self._ready, self._done = torch.cuda.Stream(), torch.cuda.Event(), torch.cuda.Event()
        self._ready.record(self._cuda.current_stream())
        self._slots = slots

    def of(self, verify_input: Any, target: Any) -> AbstractContextManager[None]:
        """Return where to plan this verify: beside its draft, or on the forward stream as it is.

        *target* is the ModelRunner with this round's attention backend and graphs. The slots tell that the draft
        noted last is this verify's: a round of zero steps has none.
        """
        slots, self._slots = self._slots, None
        if slots is None or verify_input.kv_loc_plan is not slots:
            return contextlib.nullcontext()
        reason = obstacle(target)
        self._say("off: " + reason if reason else "on")
        return contextlib.nullcontext() if reason else self._beside_draft()

    def give_up(self) -> None:
        """Plan on the forward stream from now on; called with an exception at hand."""
        self._off, self._slots = True, None
        logger.exception("The early plan is off after an error; verifies are planned on the forward stream.")

    @contextlib.contextmanager
    def _beside_draft(self) -> Iterator[None]:
        self._stream.wait_event(self._ready)
        with self._cuda.stream(self._stream):
            yield
            self._done.record(self._stream)
        self._cuda.current_stream().wait_event(self._done)

    def _say(self, what: str) -> None:
        if what not in self._said:
            self._said.add(what)
            logger.info("Planning a verify while its draft runs is %s.", what)


_early = EarlyPlan()


def no_stream(device: str) -> tuple[None, AbstractContextManager[None]]:
    """In the place of get_plan_stream: SGLang's own order, which waits for the draft, is not wanted.

    That leaves the draft-extend's plan on the forward stream: it needs the accept lengths, so it overlaps nothing.
    """
    return None, contextlib.nullcontext()


def note_draft(result: tuple[Any, bool, Any], *args: Any, **kwargs: Any) -> None:
    """After prepare_for_draft: the slots of the round are assigned, and no forward of the draft is launched yet."""
    try:
        _early.note(result[2])
    except Exception:
        _early.give_up()


def prepare_for_verify(
    original: Callable[..., Any], verify_input: Any, req_to_token_pool: Any, batch: Any, target_worker: Any
) -> Any:
    """Around eagle_prepare_for_verify: on the plan stream where that is safe."""
    try:
        place = _early.of(verify_input, target_worker.model_runner)
    except Exception:
        _early.give_up()
        place = contextlib.nullcontext()
    with place:
        return original(verify_input, req_to_token_pool, batch, target_worker)


def keep_apart(original: Callable[..., None], buffers: Any, *, exclude: Collection[str] = ()) -> None:
    """Around DecodeInputBuffers.share_buffers: the draft's graph must not read what a verify's plan writes."""
    original(buffers, exclude={*exclude, *PLANNED_INPUTS})
