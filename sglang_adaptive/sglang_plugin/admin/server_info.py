"""This package's part of /server_info in the scheduler, and how the HTTP server asks for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang_adaptive.runtime.history import SPANS
from sglang_adaptive.sglang_plugin import features, ranks
from sglang_adaptive.sglang_plugin.notes import NOTE
from sglang_adaptive.sglang_plugin.stage import current
from sglang_adaptive.sglang_plugin.stages.audit_scheduler import TAKE, Audits
from sglang_adaptive.sglang_plugin.stages.zero_steps.left_for_later import LeftForLater
from sglang_adaptive.sglang_plugin.start.profiles import profile_key

LOOK = "sglang-adaptive look"
"""Id of a request for only this package's part of the internal state."""
HISTORY = "sglang-adaptive history "
"""Id prefix of a request for only the history; the seconds of one of ``runtime.history.SPANS`` follow."""
_HISTORIES = {f"{HISTORY}{span}": span for span in SPANS}


def answer(original: Callable[..., Any], controller: Any, recv_req: Any) -> Any:
    """Return SGLang's internal state with our part; for a request with LOOK, HISTORY or TAKE as id only a part of ours.

    The whole state has more than 500 fields, which take a scheduler milliseconds to collect.
    """
    from sglang.srt.managers.io_struct import GetInternalStateReqOutput

    stages, asked, state = current(), recv_req.rid, {}
    if asked == LOOK:
        part = _adaptive()
    elif asked == TAKE:  # a finished request for the audit, if the scheduler is idle
        part = {"is_on": False, "finished": None}
        for audits in [] if stages is None else stages.of(Audits):
            part = audits.take(controller.scheduler.is_fully_idle())
    elif asked in _HISTORIES:  # the last seconds; None on a rank without a history
        part = {"history": None if stages is None else stages.controller.history(_HISTORIES[asked])}
    else:
        state, part = original(controller, recv_req).internal_state, _adaptive()
    # SGLang lists the replicas' answers in order of arrival.
    return GetInternalStateReqOutput(internal_state={**state, "adaptive": {**part, "dp_rank": ranks.replica()}})


def _adaptive() -> dict[str, Any]:
    from sglang.srt.runtime_context import get_server_args

    stages = current()
    if stages is None:
        return {"active": False, "reason": getattr(get_server_args(), NOTE, {}).get("reason")}
    found = {**stages.controller.snapshot(), "off": features.off(), "profile_key": profile_key().as_dict()}
    for later in stages.of(LeftForLater):
        found["zero_steps"] = later.snapshot()
    if stages.worker.device == "cuda":
        found["short_rounds"] = stages.shortened()
    return found


def manager() -> Any:
    """Return the TokenizerManager of this HTTP process."""
    from sglang.srt.entrypoints.http_server import get_global_state

    return get_global_state().tokenizer_manager


async def look(rid: str = LOOK) -> list[dict[str, Any]]:
    """Return our part of the internal state of every replica's scheduler, through SGLang's own communicator."""
    from sglang.srt.managers.io_struct import GetInternalStateReq

    manager().auto_create_handle_loop()
    answers = await manager().get_internal_state_communicator(GetInternalStateReq(rid=rid))
    return [answer.internal_state["adaptive"] for answer in answers]
