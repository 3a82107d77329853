"""SGLang plugin: each rank logs the steps of its rounds; a rank's clock may lie; stacks on a signal.

A line is "requests steps", one per round, also for a round in which the rank has no request.
"""

from __future__ import annotations

import faulthandler
import os
import signal
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.harness import plugin

ENTRY_POINT = "benchmark_round_log"
LOG = "BENCHMARK_ROUND_LOG"
"""Environment variable: path of the logs; the rank's number is appended."""
LIE = "BENCHMARK_CLOCK_LIE"
"""Environment variable: every rank but the first reads a round of n steps as 1 + LIE * n times as fast as it was."""
STACKS = signal.SIGUSR2
"""On this signal a process writes its threads' stacks to its log."""


def environment(plugin_folder: Path, log: Path, lie: float = 0.0) -> dict[str, str]:
    """Return the variables of a server that logs; writes the plugin's metadata into *plugin_folder*."""
    return {LOG: str(log), LIE: str(lie), **plugin.environment(plugin_folder, ENTRY_POINT, __name__)}


def register() -> None:
    """Entry point: log, and let clocks lie, in a server configured for it."""
    if LOG not in os.environ:
        return
    from sglang_adaptive.runtime.controller import AdaptiveController
    from sglang_adaptive.runtime.round_times import RoundClock

    faulthandler.register(STACKS, all_threads=True)
    AdaptiveController.choose = _logged(AdaptiveController.choose)  # type: ignore[method-assign]
    lie = float(os.environ[LIE])
    if lie:
        RoundClock.read = _lying(RoundClock.read, lie)  # type: ignore[method-assign]


def _rank() -> int:
    from sglang.srt.runtime_context import get_parallel

    return int(get_parallel().tp_rank)


def _logged(activate: Callable[[Any, int], None]) -> Callable[[Any, int], None]:
    lines: list[Any] = []

    def logged(controller: Any, batch_size: int) -> None:
        activate(controller, batch_size)
        if not lines:
            lines.append(open(f"{os.environ[LOG]}{_rank()}", "a", buffering=1))  # noqa: SIM115
        lines[0].write(f"{batch_size} {controller.states.live.steps}\n")

    return logged


def _lying(read: Callable[..., float | None], lie: float) -> Callable[..., float | None]:
    def lying(clock: Any, steps: int, *round_shape: Any) -> float | None:
        seconds = read(clock, steps, *round_shape)
        return seconds if seconds is None or _rank() == 0 else seconds / (1 + lie * steps)

    return lying


def logs(log: Path) -> list[list[tuple[int, int]]]:
    """Return the rounds so far of both ranks, as (requests, steps)."""
    found = []
    for rank in range(2):
        path = Path(f"{log}{rank}")
        text = path.read_text() if path.exists() else ""
        whole = text[: text.rfind("\n") + 1]  # the last line may be half written
        found.append([(int(left), int(right)) for left, right in (line.split() for line in whole.splitlines())])
    return found


def compare(rounds: Sequence[Sequence[tuple[int, int]]]) -> dict[str, Any]:
    """Return whether all ranks ran the same steps in every round, and which rounds there were.

    A rank may be two rounds ahead of another when the logs are read.
    """
    together = list(zip(*rounds, strict=False))
    unlike = next((at for at, each in enumerate(together) if len({steps for _, steps in each}) > 1), None)
    depths = [each[0][1] for each in together]
    most, fewest = max(map(len, rounds)), min(map(len, rounds))
    sizes = [[requests for requests, _ in each] for each in together]
    return {
        "rounds": len(together),
        "identical": unlike is None and most - fewest <= 2 and bool(together),
        "first_unlike": None if unlike is None else {"round": unlike, "ranks": [list(one) for one in together[unlike]]},
        "rounds_of_each_rank": [len(each) for each in rounds],
        "switches": sum(one != other for one, other in pairwise(depths)),
        "rounds_by_depth": {str(depth): depths.count(depth) for depth in sorted(set(depths))},
        "rounds_with_an_idle_rank": sum(min(each) == 0 < max(each) for each in sizes),
        "rounds_with_four_times_the_requests": sum(max(each) >= 4 * min(each) > 0 for each in sizes),
        "largest_batch": max((max(each) for each in sizes), default=0),
    }
