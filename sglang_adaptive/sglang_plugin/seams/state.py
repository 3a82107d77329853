"""/server_info and /set_internal_state in the scheduler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang_adaptive.sglang_plugin.hooks import SRT, around, needs

_STATE = SRT + "managers.scheduler_components.internal_state.SchedulerInternalStateController."


@around(_STATE + "get_internal_state", "self", "recv_req")
def get_internal_state(original: Callable[..., Any], controller: Any, recv_req: Any) -> Any:
    """Answer a request for the internal state, with how the server adapts or why not, or for only our part of it."""
    from sglang_adaptive.sglang_plugin.admin.server_info import answer

    return answer(original, controller, recv_req)


@around(_STATE + "set_internal_state", "self", "recv_req")
def set_internal_state(original: Callable[..., Any], controller: Any, recv_req: Any) -> Any:
    """Handle a message of /set_internal_state, which may carry a configuration or a report of the audit."""
    from sglang_adaptive.sglang_plugin.admin.handlers import unpack

    unpack(recv_req)
    return original(controller, recv_req)


@around(_STATE + "_update_handlers", "self")
def update_handlers(original: Callable[..., dict[str, Any]], controller: Any) -> dict[str, Any]:
    """List the handlers of /set_internal_state."""
    from sglang_adaptive.sglang_plugin.admin.handlers import handlers

    return {**original(controller), **handlers()}


needs(
    """
    managers.scheduler_components.internal_state.SchedulerInternalStateController.__init__: scheduler
    managers.scheduler_components.internal_state.UpdateRejected
    managers.io_struct.GetInternalStateReqOutput: internal_state
    """
)
