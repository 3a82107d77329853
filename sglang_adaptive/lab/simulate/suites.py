"""The suites: named families of seeded traces."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from sglang_adaptive.lab.simulate import scenes
from sglang_adaptive.lab.simulate.setting import Setting
from sglang_adaptive.lab.simulate.trace import Trace


@dataclass(frozen=True)
class Suite:
    """A family of traces; trace *i* depends on the seed, the suite's name and *i* alone."""

    name: str
    title: str
    make: scenes.MakeScene

    def traces(self, setting: Setting) -> Iterator[Trace]:
        """Draw the traces one after the other; each holds a few megabytes."""
        for index in range(setting.traces):
            rng = np.random.default_rng([setting.seed, index, *self.name.encode()])
            yield self.make(setting, index, rng).build(rng)


SUITES: dict[str, Suite] = {
    suite.name: suite
    for suite in (
        Suite("stationary", "stationary grid", scenes.stationary),
        Suite("acceptance", "acceptance switching", scenes.acceptance),
        Suite("load", "load switching", scenes.load),
        Suite("both", "both switching", scenes.both),
        Suite("heterogeneous", "heterogeneous batches", scenes.heterogeneous),
        Suite("bursts", "bursts of arrivals", scenes.bursts),
        Suite("drift", "cost drift of 20%", scenes.drift),
        Suite("profile-5", "profile off by 5%", scenes.mistaken(0.05)),
        Suite("profile-15", "profile off by 15%", scenes.mistaken(0.15)),
        Suite("bad-draft", "bad draft", scenes.bad_draft),
        Suite("cold-start", "cold start, no profile", scenes.cold_start),
        Suite("step-change", "p 0.9 to 0.3 and back", scenes.step_change),
    )
}
