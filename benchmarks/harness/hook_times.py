"""Host time of this package's own functions in a scheduler, by hook: calls and seconds in a small mapped file.

Time is a function's own: SGLang functions that it calls, and hooks inside them, do not count. Calls of a hook around an
SGLang function that skip that function are also summed separately: they do its work in its place. The figures include
the clock's overhead of about 0.5 us per call.
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

FILE = "BENCHMARK_HOOK_TIMES"
"""Environment variable: path of a scheduler's times; the names are at the same path plus ``.json``."""

MOST = 256


class Spent(NamedTuple):
    """What a function has used so far."""

    calls: float
    seconds: float
    instead: float
    """Part of the seconds from calls that skipped SGLang's function; 0 for hooks that are not around one."""


class HookTimes:
    """The mapped file: a row of ``Spent`` for each function."""

    def __init__(self, path: str | Path, create: bool = False) -> None:
        self._path = Path(path)
        if create:
            np.zeros((MOST, len(Spent._fields))).tofile(self._path)
        self._cells = np.memmap(self._path, dtype="f8", mode="r+", shape=(MOST, len(Spent._fields)))
        self._written = memoryview(self._cells.reshape(-1))  # a numpy element takes a few times as long
        self._names: list[str] = []
        self._inner = [0.0]  # for each running function, from outer to inner: seconds that are not its own

    def timed(self, name: str, function: Callable[..., Any], around: bool = False) -> Callable[..., Any]:
        """Return *function* with a clock; with *around*, its first argument is SGLang's function, not ours."""
        row = len(self._names)
        if row == MOST:
            return function
        self._names.append(name)
        self._path.with_suffix(".json").write_text(json.dumps(self._names))
        cells, at, inner, clock = self._written, row * len(Spent._fields), self._inner, time.perf_counter

        def outside(original: Callable[..., Any], called: list[bool], *args: Any, **kwargs: Any) -> Any:
            called.append(True)
            inner.append(0.0)
            begin = clock()
            try:
                return original(*args, **kwargs)
            finally:
                inner.pop()
                inner[-1] += clock() - begin

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            begin, called = clock(), [not around]
            inner.append(0.0)
            try:
                return (
                    function(functools.partial(outside, args[0], called), *args[1:], **kwargs)
                    if around
                    else function(*args, **kwargs)
                )
            finally:
                own = clock() - begin - inner.pop()
                cells[at] += 1
                cells[at + 1] += own
                if not any(called):
                    cells[at + 2] += own
                inner[-1] += clock() - begin  # exclude this bookkeeping from the caller's time

        return call

    def read(self) -> dict[str, Spent]:
        """Return what each function has used so far."""
        names = json.loads(self._path.with_suffix(".json").read_text())
        return {name: Spent(*map(float, self._cells[row])) for row, name in enumerate(names)}


def install(path: str) -> None:
    """In a scheduler, before hooks are added: put a clock around each hook and around the choice of steps."""
    from sglang_adaptive.policy.throughput import ThroughputPolicy
    from sglang_adaptive.runtime.controller import AdaptiveController
    from sglang_adaptive.runtime.counters import Counters
    from sglang_adaptive.runtime.history import History
    from sglang_adaptive.runtime.round_times import RoundClock
    from sglang_adaptive.sglang_plugin.hooks import Process, hooks

    times = HookTimes(path, create=True)
    for hook in hooks(Process.SCHEDULER, Process.SCHEDULER_CUDA, Process.SCHEDULER_PLAN_STREAM):
        function = hook.function
        if not isinstance(function, type):
            target, module = hook.target.rpartition(".")[2], function.__module__.rpartition(".")[2]
            name = f"{hook.kind} {target}: {module}.{function.__name__}"
            object.__setattr__(hook, "function", times.timed(name, function, hook.kind == "around"))
    choosing = ("_closed_history", "_hand_over_cost", "choose")
    parts: list[tuple[type, str]] = [(AdaptiveController, name) for name in choosing]
    parts += [(Counters, "add_round"), (History, "add"), (RoundClock, "read")]
    parts += [(ThroughputPolicy, "observe"), (ThroughputPolicy, "choose")]
    for owner, name in parts:  # what the hooks call, separately; SGLang itself calls none of it
        if function := getattr(owner, name, None):  # a detail of ours that another version may lack
            setattr(owner, name, times.timed(f"{owner.__name__}.{name}", function))


SHOWN = 16


def by_hook(before: Mapping[str, Spent], after: Mapping[str, Spent], rounds: float) -> dict[str, Any]:
    """Return microseconds per round: ours on top of SGLang's functions, ours in their place, the largest parts."""
    new = {
        name: Spent(*((now - then) / rounds for now, then in zip(spent, before[name], strict=True)))
        for name, spent in after.items()
    }
    instead = 1e6 * sum(spent.instead for spent in new.values())
    largest = sorted((name for name in new if new[name].calls), key=lambda name: -new[name].seconds)[:SHOWN]
    return {
        "ours": 1e6 * sum(spent.seconds for spent in new.values()) - instead,
        "in_place_of_sglang_s": instead,
        "by_hook": {name: {"us": 1e6 * new[name].seconds, "calls": new[name].calls} for name in largest},
    }
