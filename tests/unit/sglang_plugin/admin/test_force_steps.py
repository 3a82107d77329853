"""What an operator can hold: draft steps, permanently or for a time; and what is refused."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace
from typing import Any

import pytest
from sglang.srt.managers.scheduler_components.internal_state import UpdateRejected

from sglang_adaptive.sglang_plugin.admin.handlers import (
    FORCE_KEY,
    LEASE_OVER_KEY,
    WARM_UP_KEY,
    ForceSteps,
    Handler,
    Hold,
    LeaseOver,
    handlers,
    pack,
    unpack,
)
from sglang_adaptive.sglang_plugin.admin.route import AdminRoute
from sglang_adaptive.sglang_plugin.stages.audit_scheduler import REPORT_KEY, Report
from tests.asgi import application, posted, until
from tests.fakes import ema, stages_of
from tests.loops import in_a_loop

LONG = 3600
SHORT = 0.01


class Scheduler:
    """Handles messages like SGLang's: validates a complete one, then applies it."""

    def __init__(self) -> None:
        self.controller = ema()
        self.stages = stages_of(self.controller)
        self.ends = 0
        """Messages so far that end a hold."""

    async def __call__(self, values: dict[str, Any]) -> list[bool]:
        handlers = {FORCE_KEY: ForceSteps(self.stages), LEASE_OVER_KEY: LeaseOver(self.stages)}
        unpack(SimpleNamespace(server_args=values))
        try:
            for key, value in values.items():
                handlers[key].validate(key, value)
        except (KeyError, UpdateRejected):
            return [False]
        for key, value in values.items():
            handlers[key].apply(key, value)
        self.ends += LEASE_OVER_KEY in values
        return [True]


def worker(scheduler: Scheduler) -> AdminRoute:
    """Return an HTTP worker's layer over an application that passes messages on like SGLang's route."""

    async def pass_on(body: bytes) -> bytes:
        values = json.loads(body)["server_args"]
        assert all(type(value) in (int, float) for value in values.values()), "SGLang's message takes numbers alone"
        return json.dumps(await scheduler(values)).encode()

    return AdminRoute(application(pass_on), [0, 1, 3, 7], None, to_schedulers=scheduler)


async def ask(route: AdminRoute, **values: Any) -> Any:
    _, body = await posted(route, json.dumps({"server_args": values}).encode())
    return json.loads(body)


def held(scheduler: Scheduler) -> int | None:
    found: int | None = scheduler.controller.snapshot()["forced_steps"]
    return found


def hold(steps: int, seconds: float = SHORT) -> dict[str, Any]:
    return {"adaptive_force_steps": steps, "adaptive_force_seconds": seconds}


@pytest.mark.parametrize(
    ("commands", "ends", "steps"),
    [
        ([hold(7), hold(7, LONG)], 1, 7),
        ([hold(7), hold(7, LONG), hold(1)], 2, None),
        ([{"adaptive_force_steps": 3}, hold(0), hold(1)], 2, 3),
        *(([hold(0), {"adaptive_force_steps": steps}], 1, steps) for steps in (7, None)),
        *(([{"adaptive_force_steps": steps}, hold(0)], 1, steps) for steps in (7, None)),
        ([{"adaptive_force_steps": 3}, {**hold(0), "nonsense": 1}], 1, 3),
    ],
    ids=["renewed", "the renewed one replaced", "held before", "meanwhile", "released meanwhile", "held again",
         "free again", "refused"],
)  # fmt: skip
@in_a_loop
async def test_what_is_held_when_a_hold_ends(commands: list[dict[str, Any]], ends: int, steps: int | None) -> None:
    """The commands go to two HTTP workers in turn."""
    scheduler = Scheduler()
    workers = worker(scheduler), worker(scheduler)
    for number, values in enumerate(commands):
        assert await ask(workers[number % 2], **values) == ["nonsense" not in values]
    await until(lambda: scheduler.ends == ends)
    assert held(scheduler) == steps


@pytest.mark.parametrize(
    ("values", "told"),
    [
        *((steps | {"adaptive_force_seconds": 5}, "got 5; expected steps to hold in adaptive_force_steps beside it")
          for steps in ({}, {"adaptive_force_steps": None})),
        *(({"adaptive_force_steps": 3, "adaptive_force_seconds": value},
           f"got {json.dumps(value)}; expected a number above 0 up to 86400")
          for value in (0, -1, 86401, "5", None, True, [5])),
    ],
)  # fmt: skip
@in_a_loop
async def test_what_is_no_time_is_refused(values: dict[str, Any], told: str) -> None:
    scheduler = Scheduler()
    answer = await ask(worker(scheduler), **values)
    assert answer == {"error": {"message": f"adaptive_force_seconds: {told}"}}
    assert held(scheduler) is None


@pytest.mark.parametrize("value", [2, 8, -1, 10**6, 1.0, 0.5, True, False, "3", "null", "", [3], [], {"steps": 3}])
@in_a_loop
async def test_what_are_no_steps_is_refused(value: Any) -> None:
    scheduler = Scheduler()
    answer = await ask(worker(scheduler), adaptive_force_steps=value)
    told = f"got {json.dumps(value)}; expected one of 0, 1, 3, 7, or null to release"
    assert answer == {"error": {"message": f"adaptive_force_steps: {told}"}}
    assert held(scheduler) is None


# -- other keys -----------------------------------------------------------------------------------------------


def extending(*states: dict[str, Any] | None, inactive: str | None = None) -> tuple[AdminRoute, list[Any]]:
    """Return the layer of a server whose replicas say *states* about zero steps, and what reaches SGLang's route."""
    passed: list[Any] = []

    async def stock(body: bytes) -> bytes:
        passed.append(json.loads(body)["server_args"])
        return b"[true]"

    async def zero_steps() -> list[Any]:
        return list(states)

    return AdminRoute(application(stock), [0, 3], inactive, zero_steps=zero_steps), passed


def upto(most: int, reason: str | None = None) -> dict[str, Any]:
    return {"reason": reason, "most_extend_every": most}


NOWHERE = "this server runs the draft's extend in every zero-step round"


@pytest.mark.parametrize(
    ("states", "value", "told"),
    [
        *(([upto(8)], value, f"got {json.dumps(value)}; expected an integer from 1 to 8")
          for value in (0, 9, 33, 2.5, True, None, "3", [1])),
        ([upto(32), upto(4)], 5, "got 5; expected an integer from 1 to 4"),
        ([None], 5, NOWHERE),
        ([upto(8), upto(8, "OutOfMemoryError")], 5, NOWHERE),
    ],
)  # fmt: skip
@in_a_loop
async def test_an_interval_is_refused_with_its_range(states: list[Any], value: Any, told: str) -> None:
    route, passed = extending(*states)
    answer = await ask(route, adaptive_zero_step_extend_every=value)
    assert answer == {"error": {"message": f"adaptive_zero_step_extend_every: {told}"}}
    assert await ask(route, adaptive_zero_step_extend_every=value, adaptive_force_steps=3) == answer
    assert passed == []


@in_a_loop
async def test_an_interval_in_range_goes_on_alone_or_beside_steps() -> None:
    route, passed = extending(upto(8))
    assert await ask(route, adaptive_zero_step_extend_every=8) == [True]
    assert await ask(route, adaptive_zero_step_extend_every=1, adaptive_force_steps=3) == [True]
    assert passed[0] == {"adaptive_zero_step_extend_every": 8}
    message = SimpleNamespace(server_args=passed[1])
    unpack(message)
    assert message.server_args == {"adaptive_zero_step_extend_every": 1, FORCE_KEY: Hold(3)}


@in_a_loop
async def test_an_interval_is_refused_where_nothing_adapts() -> None:
    route, passed = extending(None, inactive="topk is 4")
    told = {"error": {"message": "adaptive_zero_step_extend_every: adaptive speculation is off: topk is 4"}}
    assert await ask(route, adaptive_zero_step_extend_every=1) == told and passed == []


@pytest.mark.parametrize(
    "name",
    [
        *(WARM_UP_KEY, LEASE_OVER_KEY, REPORT_KEY, "adaptive_force_budget", "adaptive_", "adaptive_force_steps "),
        *pack(FORCE_KEY, Hold(3, lease=5)),
        *pack(REPORT_KEY, Report(0, 0, "x", "wrong")),
    ],
)
@in_a_loop
async def test_a_key_of_the_launcher_is_refused_from_outside(name: str) -> None:
    route, passed = extending(upto(8))
    for others in ({}, {"adaptive_force_steps": 3}, {"pp_max_micro_batch_size": 8}):
        answer = await ask(route, **{name: 1, **others})
        line = answer["error"]["message"]
        assert line.startswith(f"{name}: unknown key; expected one of adaptive_config, adaptive_force_steps, ")
    assert passed == []
    assert await ask(route, pp_max_micro_batch_size=8) == [True], "SGLang's own"


@in_a_loop
async def test_a_misspelled_key_is_told_the_right_one() -> None:
    answer = await ask(extending()[0], adaptive_force_stepz=3)
    assert answer["error"]["message"].endswith('(did you mean "adaptive_force_steps"?)')


# -- refused --------------------------------------------------------------------------------------------------


def refusal(handler: Handler, value: Any, key: str) -> str:
    with pytest.raises(UpdateRejected) as caught:
        handler.validate(key, value)
    return str(caught.value)


@pytest.mark.parametrize("value", [math.inf, math.nan, "1", None])
def test_the_end_of_a_hold_has_a_number(value: Any) -> None:
    assert refusal(LeaseOver(stages_of(ema())), value, LEASE_OVER_KEY).endswith("expected the number of a hold")


def test_a_command_does_not_make_another_one_s_hold_permanent() -> None:
    controller = ema()
    controller.force_steps(3)
    controller.force_steps(7, lease=1)
    assert (controller.snapshot()["forced_steps"], controller.snapshot()["forced_without_end"]) == (7, 3)
    controller.end_lease(1)
    assert controller.snapshot()["forced_without_end"] == 3
    controller.force_steps(None)
    assert controller.snapshot()["forced_without_end"] is None


def test_a_scheduler_that_does_not_adapt_refuses_every_key() -> None:
    found = handlers()
    assert len(found) == 6 and {FORCE_KEY, LEASE_OVER_KEY} < found.keys()
    for key, handler in found.items():
        assert refusal(handler, 0, key) == f"{key}: this server's speculation is not adaptive"
