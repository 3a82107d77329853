"""Lets the policy fail or answer nonsense at some round."""

from __future__ import annotations

from typing import Any

from sglang_adaptive.policy.choice import drafted

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
