"""A plugin for SGLang that lets the policy fail at some round when a file says so."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from sglang_adaptive.policy.choice import drafted

ORDER = "CAMPAIGN_ORDER"
"""The variable that names the file: ``{"id", "method", "nonsense", "rounds"}``."""
DEPTHS: list[Any] = [5, -1, 10**9, None, "7", 1.5, float("nan")]
NONSENSE: list[Any] = [5, *map(drafted, DEPTHS), RuntimeError("raised by the campaign")]
METHODS = ("choose", "observe", "snapshot", "prices", "export_cost", "import_cost", "forecast")
"""What of a policy is spoilt; of any but the first the answer is not used as a depth, and it raises."""


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


def register() -> None:
    """Read the order before every round."""
    from sglang_adaptive.runtime.controller import AdaptiveController

    file, done = Path(os.environ[ORDER]), [""]
    activate = AdaptiveController.choose

    def ordered(controller: Any, batch_size: int) -> None:
        text = file.read_text() if file.exists() else ""
        if text != done[0]:
            done[0], order = text, json.loads(text)
            if order.get("method"):
                spoil(controller.policy, order["method"], NONSENSE[order["nonsense"]], order["rounds"])
        activate(controller, batch_size)

    AdaptiveController.choose = ordered  # type: ignore[method-assign]
