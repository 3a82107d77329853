"""0006: /server_info and /set_internal_state."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from tests.patch_checks.parts import (
    LADDER,
    adaptive_worker,
    over_the_wire,
    published,
    request,
    result_processor,
    verify,
)
from tests.patch_checks.registry import kept, repaired


@repaired
def server_info_tells_what_adaptive_does() -> None:
    config = {**LADDER, "8": {"candidate_steps": [1]}}
    with published():
        worker = adaptive_worker(config, launch_steps=3)
        processor = result_processor(worker)
        worker.activate_step_by_batch(1)
        verify(processor, [request()], steps=3, correct=0)
        worker.activate_step_by_batch(1)
        worker.activate_step_by_batch(9)
        info = internal_state(worker).get("adaptive")
        assert info is not None, "/server_info has no adaptive"
        assert (info["active"], info["policy"], info["tiers"]) == (True, "ema", [1, 3]), info
        assert (info["current_steps"], info["forced_steps"], info["rounds_by_tier"]) == (1, None, {"1": 2, "3": 1})
        assert (info["switches"], [s["cause"] for s in info["recent_switches"]]) == (1, ["acceptance"]), info
        small, large = info["slots"]
        assert (small["batch_range"], small["steps"], small["batches"]) == ([1, 7], 1, 1), small
        assert (small["ema_accept_len"], large["batch_range"]) == (0.0, [8, None]), info


@repaired
def server_info_tells_why_adaptive_is_off() -> None:
    from sglang.srt.arg_groups.speculative_hook import _maybe_disable_adaptive
    from sglang.srt.runtime_context import get_context
    from sglang.srt.server_args import ServerArgs

    args = ServerArgs(model_path="dummy", speculative_algorithm="EAGLE3", speculative_adaptive=True)
    args.speculative_eagle_topk = 4
    args.resolve_once()
    _maybe_disable_adaptive(args)
    with published():
        get_context().set_server_args(args)
        info = internal_state(SimpleNamespace(adaptive_controller=None)).get("adaptive")
        assert info is not None, "/server_info has no adaptive"
        assert info["active"] is False and "topk=4" in info["reason"], info


@repaired
def steps_can_be_forced_and_released() -> None:
    with published():
        worker = adaptive_worker(launch_steps=3)
        processor = result_processor(worker)
        assert posted(worker, {"adaptive_force_steps": 1}) == (200, [True]), "1 step could not be forced"
        for _ in range(3):
            worker.activate_step_by_batch(1)
            assert worker.speculative_num_steps == 1, "the forced steps were not live"
            verify(processor, [request()], steps=1, correct=0)
        assert posted(worker, {"adaptive_force_steps": None}) == (200, [True]), "the steps could not be released"
        worker.adaptive_controller.params._slots[1].current_steps = 3
        worker.activate_step_by_batch(1)
        info = internal_state(worker)["adaptive"]
        assert (info["forced_steps"], info["current_steps"]) == (None, 3), info
        assert [switch["cause"] for switch in info["recent_switches"]] == ["forced", "released"], info


@repaired
def a_refused_update_says_why() -> None:
    with published():
        worker = adaptive_worker(launch_steps=3)
        code, answer = posted(worker, {"adaptive_force_steps": 2})
        assert code == 400 and "must be one of [1, 3] or null, got 2" in answer["error"]["message"], answer
        code, answer = posted(SimpleNamespace(adaptive_controller=None), {"adaptive_force_steps": 3})
        assert code == 400 and "adaptive" in answer["error"]["message"], answer


@kept
def null_for_another_key_is_refused() -> None:
    with published():
        code, answer = posted(adaptive_worker(), {"pp_max_micro_batch_size": None})
        assert 400 <= code < 500, (code, answer)


@kept
def another_key_is_updated() -> None:
    from sglang.srt.runtime_context import get_parallel

    with published():
        assert posted(adaptive_worker(), {"pp_max_micro_batch_size": 5}) == (200, [True])
        assert get_parallel().pp_max_micro_batch_size == 5


def state_controller(worker: Any) -> Any:
    """Return the scheduler's controller of internal state, without the parts of the state that need a model."""
    from sglang.srt.managers.scheduler_components.internal_state import SchedulerInternalStateController
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    scheduler = SimpleNamespace(
        draft_worker=worker,
        spec_algorithm=SpeculativeAlgorithm.from_string("EAGLE3"),
        metrics_reporter=SimpleNamespace(spec_total_num_forward_ct=0),
        max_running_requests=8,
        rust_server=None,
    )
    controller = SchedulerInternalStateController(scheduler, record_step_time=False)
    for name in ("_add_topology", "_add_memory_usage", "_add_disaggregation", "_add_elastic_ep"):
        setattr(controller, name, lambda state: None)
    return controller


def internal_state(worker: Any) -> dict[str, Any]:
    """Return the scheduler's part of /server_info after a trip through the wire format."""
    from sglang.srt.managers.io_struct import GetInternalStateReq

    reply = state_controller(worker).get_internal_state(GetInternalStateReq())
    return dict(over_the_wire(reply).internal_state)


def posted(worker: Any, values: dict[str, Any]) -> tuple[int, Any]:
    """POST *values* to SGLang's application, backed by *worker*'s scheduler; return code and answer."""
    from fastapi.testclient import TestClient
    from sglang.srt.entrypoints import http_server
    from sglang.srt.managers.tokenizer_manager import TokenizerManager

    async def communicator(message: Any) -> list[Any]:
        await asyncio.sleep(0)
        return [over_the_wire(state_controller(worker).set_internal_state(over_the_wire(message)))]

    manager = object.__new__(TokenizerManager)
    manager.auto_create_handle_loop = lambda: None
    manager.set_internal_state_communicator = communicator
    before = http_server._global_state
    http_server._global_state = SimpleNamespace(tokenizer_manager=manager)
    try:
        answer = TestClient(http_server.app).post("/set_internal_state", json={"server_args": values})
    finally:
        http_server._global_state = before
    return answer.status_code, answer.json()
