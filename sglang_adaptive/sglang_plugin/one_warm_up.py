"""One run of the model before each CUDA graph of a further depth is captured, where SGLang 0.5.23 makes two.

A run before the capture loads kernels and makes what is made once. The launch depth's graphs have had two each; what is
new to another depth, the kernels of its width, one run loads as well.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

_active = False


@contextlib.contextmanager
def for_further_depths() -> Iterator[None]:
    """Within, each capture makes one run before it."""
    global _active
    _active = True
    try:
        yield
    finally:
        _active = False


def capture_one(
    original: Callable[..., None],
    backend: Any,
    shape_key: Any,
    forward_fn: Callable[[], Any],
    *args: Any,
    **kwargs: Any,
) -> None:
    """Around FullCudaGraphBackend.capture_one, which calls *forward_fn* twice before the call that it captures."""
    original(backend, shape_key, _second_from_first(forward_fn) if _active else forward_fn, *args, **kwargs)


def _second_from_first(forward: Callable[[], Any]) -> Callable[[], Any]:
    """Return *forward*, except that the second call hands out the outcome of the first and runs nothing."""
    kept: list[Any] = []
    calls = 0

    def call() -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:
            return kept.pop()
        outcome = forward()
        if calls == 1:
            kept.append(outcome)
        return outcome

    return call
