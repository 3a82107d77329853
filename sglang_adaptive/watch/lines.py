"""The view as lines of text, for a pipe or a log."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Any

from sglang_adaptive.command_line import listed
from sglang_adaptive.watch.view import HEALTHY

WORTH_EVERY = 60.0
"""Seconds between two lines of the speedup, which is a mean over an hour."""


class Lines:
    """One line for each reading and one for each new switch."""

    def __init__(self) -> None:
        self._latest: float | None = None
        """Time of the latest printed switch; None before the first reading."""
        self._told_worth = -math.inf

    def of(self, view: dict[str, Any]) -> Iterator[str]:
        """Yield the lines of *view*."""
        if view["state"] not in HEALTHY:
            yield f"{_clock(view['time'])}  {view['state']}: {view['words']}"
        if "depth" not in view:
            return
        switches = view["recent_switches"]
        for switch in switches:
            if self._latest is not None and switch["time"] > self._latest:
                moved = f"{switch['from_steps']} -> {switch['to_steps']}"
                yield f"{_clock(switch['time'])}  switch {moved}: {switch['words']}"
        self._latest = switches[-1]["time"] if switches else self._latest or 0.0
        yield f"{_clock(view['time'])}  {view['state']}, depth {view['depth']}{_since_last(view['since_last'])}"
        words = (view["worth"] or {}).get("words")
        if words is not None and view["time"] - self._told_worth >= WORTH_EVERY:
            self._told_worth = view["time"]
            yield f"{_clock(view['time'])}  worth: {words}"


def _since_last(passed: dict[str, Any] | None) -> str:
    if passed is None or not passed["rounds"]:
        return ""
    rounds = passed["rounds_by_depth"].items()
    shares = listed([f"{count / passed['rounds']:.0%} at {depth}" for depth, count in rounds])
    length = "" if passed["accept_length"] is None else f", accept length {passed['accept_length']:.2f}"
    return f", {passed['tokens_per_second']:.1f} tokens/s{length}, {passed['rounds']} rounds: {shares}"


def _clock(moment: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(moment))
