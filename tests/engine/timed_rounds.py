"""Which rounds are timed while other requests' prefills come in between, in the overlapping loop and the normal one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any
from unittest import mock

from tests.engine.stepping import Stepper
from tests.engine.zero_step_scripts import prompt

LAUNCH_SECONDS = 100.0
"""Launch time of a prefill by this test's clock; a round takes a second."""


def join_one_by_one(lab: Stepper) -> Iterator[None]:
    """A request decodes while three more join, each some rounds apart."""
    lab.force(3)
    for index, tokens in enumerate((84, 56, 36, 12)):
        lab.ask(f"request {index}", prompt(lab, index), tokens)
        for _ in range(6):
            yield
    while not lab.done():
        yield


def timed(lab: Stepper) -> list[dict[str, Any]]:
    """Return the round times taken in both loops, with and without the notice that a prefill is launched."""
    return [
        {"overlap": overlap, "told": told, "launch": LAUNCH_SECONDS, "seconds": _seconds(lab, overlap, told)}
        for overlap, told in ((True, True), (False, True), (True, False))
    ]


def _seconds(lab: Stepper, overlap: bool, told: bool) -> list[float]:
    taken: list[float | None] = []
    clock, worker = lab.controller._clock, lab.worker
    read, launch = clock.read, worker.forward_batch_generation
    now = 0.0

    def logged(*place: Any) -> float | None:
        nonlocal now
        now += 1.0
        taken.append(read(*place))
        return taken[-1]

    def slow(batch: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal now
        with nullcontext() if told else mock.patch.object(lab.controller, "interrupt"):
            result = launch(batch, *args, **kwargs)
        now += LAUNCH_SECONDS if batch.forward_mode.is_extend() else 0.0
        return result

    with (
        mock.patch.object(clock, "now", lambda: now),
        mock.patch.object(clock, "read", logged),
        mock.patch.object(worker, "forward_batch_generation", slow),
    ):
        lab.run(join_one_by_one, every=8, overlap=overlap)
    return [seconds for seconds in taken if seconds is not None]
