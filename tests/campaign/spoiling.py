"""A plugin for SGLang that injects faults when a file says so: a policy that fails at some round, clocks that jump."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sglang_adaptive.policy.choice import drafted

ORDER = "CAMPAIGN_ORDER"
"""The variable that names the file: ``{"id", "method", "nonsense", "rounds", "clocks"}``."""
DEPTHS: list[Any] = [5, -1, 10**9, None, "7", 1.5, float("nan")]
NONSENSE: list[Any] = [5, *map(drafted, DEPTHS), RuntimeError("raised by the campaign")]
METHODS = ("choose", "observe", "snapshot", "prices", "export_cost", "import_cost", "forecast")
"""What of a policy is spoilt; of any but the first the answer is not used as a depth, and it raises."""
MARK = "raised by the campaign"


def spoil(policy: Any, method: str, answer: Any, rounds: int) -> None:
    """Let *method* of *policy* raise or return *answer* after *rounds* calls."""
    sound, left = getattr(policy, method, None), iter(range(rounds))
    if sound is None:
        return

    def spoilt(*args: Any, **how: Any) -> Any:
        if next(left, None) is not None:
            return sound(*args, **how)
        if isinstance(answer, Exception):
            raise answer
        return answer

    setattr(policy, method, spoilt)


class Jumps:
    """Makes clocks that are wrong by varying amounts in both directions while jumping is on."""

    def __init__(self) -> None:
        self.on = False
        self._draw, self._off = random.Random(0), 0.0

    def clock(self, now: Callable[[], float]) -> Callable[[], float]:
        def jumping() -> float:
            if self.on and self._draw.random() < 0.2:
                self._off = self._draw.choice((-1, 1)) * 10 ** self._draw.uniform(-4, 9)
            return now() + self._off

        return jumping


def register() -> None:
    """Read the order before every round, and replace the package's clocks by jumping ones."""
    from sglang_adaptive.runtime.controller import AdaptiveController
    from sglang_adaptive.runtime.profile_store import ProfileSaver
    from sglang_adaptive.runtime.round_times import RoundClock

    jumps, file, done = Jumps(), Path(os.environ[ORDER]), [""]
    RoundClock.__init__.__defaults__ = (jumps.clock(time.perf_counter),)
    ProfileSaver.__init__.__defaults__ = (jumps.clock(time.monotonic),)
    AdaptiveController.__init__.__kwdefaults__["wall_time"] = jumps.clock(time.time)
    activate = AdaptiveController.choose

    def ordered(controller: Any, batch_size: int) -> None:
        text = file.read_text() if file.exists() else ""
        if text != done[0]:
            done[0], order = text, json.loads(text)
            jumps.on = bool(order.get("clocks"))
            if order.get("method"):
                spoil(controller.policy, order["method"], NONSENSE[order["nonsense"]], order["rounds"])
        activate(controller, batch_size)

    AdaptiveController.choose = ordered  # type: ignore[method-assign]
