"""Captures the CUDA graphs of further runtime states, beside that of the launch steps, faster than SGLang 0.5.23.

- SGLang collects garbage over the whole process before and after each kind of graph, six times a state and 0.4 s each:
  three quarters of the start-up of one state of an 8B model on an H200. Here all earlier objects are frozen while a
  further state is built, and only newer ones are collected.
- SGLang runs the model twice before each capture, to load kernels and to create objects that are needed once. The
  capture of the launch steps has done that. The kernels for another number of draft tokens load in one run, before
  the first and largest graph of a kind; the smaller ones are captured without a run.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from sglang_adaptive.sglang_plugin.hooking.fallback import Fallback

_active = False
_fallback = Fallback("adaptive: a graph could not be captured without a run before it; each gets one from now on")


@contextlib.contextmanager
def for_further_depths() -> Iterator[None]:
    """Use the faster captures inside the ``with``."""
    global _active
    _active = True
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        _active = False


def freeze_gc(original: Callable[[bool], AbstractContextManager[None]], enable: bool) -> AbstractContextManager[None]:
    """Around the freeze_gc of SGLang's capture: collect only objects that a further runtime state created."""
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
    """Around FullCudaGraphBackend.capture_one: for a further runtime state run the model once before the first capture.

    With several ranks before each one: a capture that fails on one of them alone could not be repeated there.
    """
    if not _active:
        return original(backend, shape_key, forward_fn, *args, **kwargs)
    if backend._graphs and backend._tp_group.world_size == 1 and not _fallback.in_use:
        with _fallback:
            return original(backend, shape_key, _third_alone(forward_fn), *args, **kwargs)
    original(backend, shape_key, _second_from_first(forward_fn), *args, **kwargs)


def _second_from_first(forward: Callable[[], Any]) -> Callable[[], Any]:
    """Return *forward* with a second call that returns the first call's result and runs nothing."""
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


def _third_alone(forward: Callable[[], Any]) -> Callable[[], Any]:
    """Return *forward* with two calls before it that run nothing."""
    calls = 0

    def call() -> Any:
        nonlocal calls
        calls += 1
        return forward() if calls > 2 else None

    return call
