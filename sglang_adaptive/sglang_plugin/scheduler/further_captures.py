"""The CUDA graphs of the depths beside the launch depth, captured in less time than SGLang 0.5.23 takes.

- SGLang collects garbage over the whole process before and after each kind of graph, six times a depth and 0.4 s each:
  three quarters of the time that an 8B model's depth takes on an H200. What was there before a further depth is
  frozen here while that depth is built, and only what is newer is looked at.
- It runs the model twice before each capture, to load kernels and to make what is made once. The launch depth's graphs
  have had that; what is new to another depth, the kernels of its width, one run loads as well.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

_active = False


@contextlib.contextmanager
def for_further_depths() -> Iterator[None]:
    """Within, captures are the quicker ones."""
    global _active
    _active = True
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        _active = False


def freeze_gc(original: Callable[[bool], AbstractContextManager[None]], enable: bool) -> AbstractContextManager[None]:
    """Around the freeze_gc of SGLang's capture: what it froze before each kind of graph is frozen already."""
    if not _active:
        return original(enable)
    gc.collect()
    return contextlib.nullcontext()


def capture_one(
    original: Callable[..., None],
    backend: Any,
    shape_key: Any,
    forward_fn: Callable[[], Any],
    *args: Any,
    **kwargs: Any,
) -> None:
    """Around FullCudaGraphBackend.capture_one: for a further depth run the model once before the capture, not twice."""
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
