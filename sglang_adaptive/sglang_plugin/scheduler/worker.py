"""Connects SGLang's EAGLE worker and the controller."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from sglang_adaptive.policy.base import AdaptivePolicy
from sglang_adaptive.policy.config.config import load_config
from sglang_adaptive.runtime.controller import AdaptiveController
from sglang_adaptive.runtime.drafted import Drafted
from sglang_adaptive.runtime.state import SpecRuntimeState
from sglang_adaptive.sglang_plugin.scheduler.graph_sizes import GraphedDevice, ranks_pad_alike
from sglang_adaptive.sglang_plugin.scheduler.profiles import CostSharing
from sglang_adaptive.sglang_plugin.scheduler.round_looks import look_of
from sglang_adaptive.sglang_plugin.scheduler.round_traces import trace_rounds
from sglang_adaptive.sglang_plugin.scheduler.shadow_acceptance import extended, shadow_accepts
from sglang_adaptive.sglang_plugin.scheduler.warm_up_switch import watch_kernel_loads

__all__ = [
    "LARGEST_BATCH",
    "SpecRuntimeState",
    "build_controller",
    "compact_override_log",
    "controller_of",
    "interrupt_clock",
    "interrupt_for_prefill",
    "note_drafted",
    "on_verify_complete",
    "take_drafted",
]

_DRAFTED = "_sglang_adaptive_drafted"
"""Attribute of SGLang's worker: the round whose result is being resolved, as it was drafted."""

LARGEST_BATCH = "sglang_adaptive_largest_batch"
"""Attribute of a result: requests of the rank with most in its round, where ranks run their rounds together."""

_SWITCH_SOURCE = "adaptive_spec.restore"


def build_controller(worker: Any, policy: AdaptivePolicy) -> AdaptiveController:
    """Instead of SGLang's AdaptiveController: build this package's controller on SGLang's worker."""
    from sglang.srt.runtime_context import get_spec

    logging.getLogger("sglang.srt.speculative.eagle_worker_v2").addFilter(_drop_switch_lines)
    config = load_config(get_spec().speculative_adaptive_config)
    device = GraphedDevice(worker, config.prune_graphs and ranks_pad_alike())
    sharing = CostSharing(policy)
    controller = AdaptiveController(
        worker, policy, share_cost=sharing, device=device, profile_saved_at=sharing.saved_at
    )
    trace_rounds(controller, config.trace)
    watch_kernel_loads(controller)
    return controller


def controller_of(model_worker: Any) -> AdaptiveController | None:
    """Return the controller of a scheduler's speculative worker; None with fixed steps."""
    controller = getattr(model_worker, "adaptive_controller", None)
    return controller if isinstance(controller, AdaptiveController) else None


def note_drafted(processor: Any, result: Any, batch: Any) -> None:
    """Before a decode result is resolved: note the steps that drafted it, for the controller and for statistics.

    SGLang's call of the controller, later in the same function, has only the accept counts. With overlap the live
    steps may have changed since the round was launched. ``cap_lens`` is SGLang's field for the drafts that each request
    of a round may propose; EAGLE leaves it empty, so the steps are put there.
    """
    worker, width = processor.model_worker, result.speculative_num_draft_tokens
    if controller_of(worker) is None or width is None:
        return
    requests = [req.rid for req in batch.reqs]
    look = look_of(result)
    drafted = Drafted(
        width - 1,
        _context_tokens(batch),
        shadow_accepts(result, batch),
        extended(result),
        getattr(result, LARGEST_BATCH, None),
        requests,
        look,
    )
    setattr(worker, _DRAFTED, drafted)
    if result.cap_lens is None:
        verified = () if look is None else look.verified
        result.cap_lens = _Widths(verified or [width - 1] * len(batch.reqs))


def on_verify_complete(
    original: Callable[..., None], worker: Any, num_correct_drafts_per_req: Sequence[int], batch_size: int = 0
) -> None:
    """Around the worker's on_verify_complete_cpu: pass the accept counts and the drafting steps to the controller."""
    controller = controller_of(worker)
    if controller is None:
        return original(worker, num_correct_drafts_per_req, batch_size)
    return controller.on_verify_complete(num_correct_drafts_per_req, batch_size, take_drafted(worker))


def take_drafted(worker: Any) -> Drafted | None:
    """Return the note on the round whose result is being resolved, and clear it."""
    drafted: Drafted | None = getattr(worker, _DRAFTED, None)
    setattr(worker, _DRAFTED, None)
    return drafted


def interrupt_clock(processor: Any, *args: Any, **kwargs: Any) -> None:
    """Before a prefill result is processed: do not time the next decode round, which would include it."""
    interrupt_for_prefill(processor.model_worker)


def interrupt_for_prefill(worker: Any, *args: Any, **kwargs: Any) -> None:
    """Before a prefill is launched: do not time the decode round before it.

    With overlap that round's result is processed after the launch. A prefill without CUDA graphs is launched kernel by
    kernel, which occupies the scheduler's thread for 20 ms and more.
    """
    controller = controller_of(worker)
    if controller is not None:
        controller.interrupt()


def compact_override_log(result: None, *args: Any, **kwargs: Any) -> None:
    """After a switch: keep only the latest switch in SGLang's override log.

    Every switch appends an entry, and every /server_info replays all of them; only the last one has an effect.
    """
    from sglang.srt.runtime_context import get_context

    log = get_context()._overrides_log
    earlier = [index for index, (source, _) in enumerate(log) if source == _SWITCH_SOURCE][:-1]
    for index in reversed(earlier):
        del log[index]


class _Widths:
    """The verified drafts of each request, with the ``tolist`` of the tensor that SGLang expects in ``cap_lens``."""

    __slots__ = ("_drafts",)

    def __init__(self, drafts: Sequence[int]) -> None:
        self._drafts = drafts

    def tolist(self) -> list[int]:
        """Return one number a request."""
        return list(self._drafts)


def _context_tokens(batch: Any) -> int | None:
    total = batch.seq_lens_sum
    return None if total is None else int(total)


def _drop_switch_lines(record: logging.LogRecord) -> bool:
    """Drop SGLang's log line for each switch; /server_info has the switches with their causes."""
    return not str(record.msg).startswith("Switch adaptive runtime state")
