"""The suites, named families of seeded traces, and how each defines its traces."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from sglang_adaptive.lab.simulate.cost import RoundCost
from sglang_adaptive.lab.simulate.rounds import KINDS, factors
from sglang_adaptive.lab.simulate.trace import (
    Scene,
    Schedule,
    Trace,
    alternating,
    closed_loop,
    constant,
    open_loop,
    random_batch,
    random_decay,
    random_p,
    switching,
)

# What all traces of a run share.


DEFAULT_TRACES = 56
DEFAULT_ROUNDS = 1600
LARGEST_BATCH = 64


@dataclass(frozen=True)
class Setting:
    """The true cost, and how much is drawn."""

    cost: RoundCost
    rounds: int = DEFAULT_ROUNDS
    traces: int = DEFAULT_TRACES
    seed: int = 0

    @property
    def ladder(self) -> tuple[int, ...]:
        """Depths that may be chosen: the measured ones."""
        return self.cost.steps

    @property
    def max_batch(self) -> int:
        """Largest batch: 64, or the largest measured one if smaller."""
        return min(LARGEST_BATCH, self.cost.batches[-1])


# What each suite decides about its traces; each function builds the scene of trace *index*.


MakeScene = Callable[[Setting, int, np.random.Generator], Scene]


def _alike(
    setting: Setting, rng: np.random.Generator, p: Schedule, batch: Schedule, decay: float | None = None
) -> Scene:
    """Return a closed-loop scene in which all requests of a round accept alike; without *decay* one is drawn."""
    return Scene(
        cost=setting.cost,
        population=closed_loop(batch.values.astype(np.int64), rng, setting.max_batch),
        p=p.values,
        decay=random_decay(rng) if decay is None else decay,
        changes=tuple(sorted({*p.changes, *batch.changes})),
        given=setting.cost,
    )


def _any_p(setting: Setting, rng: np.random.Generator) -> Schedule:
    return switching(setting.rounds, rng, lambda: random_p(rng))


def _any_batch(setting: Setting, rng: np.random.Generator) -> Schedule:
    return switching(setting.rounds, rng, lambda: random_batch(rng, setting.max_batch))


def _one_batch(setting: Setting, rng: np.random.Generator) -> Schedule:
    return constant(random_batch(rng, setting.max_batch), setting.rounds)


def stationary(setting: Setting, index: int, rng: np.random.Generator) -> Scene:
    """A grid: 7 batch sizes by 8 acceptances; the decay cycles through four values along it."""
    batches = [b for b in (1, 2, 4, 8, 16, 32, 64) if b <= setting.max_batch]
    batch, row = batches[index % len(batches)], index // len(batches)
    p = (0.2, 0.95, 0.5, 0.8, 0.35, 0.9, 0.65, 0.425)[row % 8]
    decay = (0.93, 1.0, 0.965, 0.98)[(index + row) % 4]
    rounds = setting.rounds
    return _alike(setting, rng, constant(p, rounds), constant(batch, rounds), decay)


def acceptance(setting: Setting, index: int, rng: np.random.Generator) -> Scene:
    """p switches at one batch size."""
    return _alike(setting, rng, _any_p(setting, rng), _one_batch(setting, rng))


def load(setting: Setting, index: int, rng: np.random.Generator) -> Scene:
    """The batch size switches at one p."""
    return _alike(setting, rng, constant(random_p(rng), setting.rounds), _any_batch(setting, rng))


def both(setting: Setting, index: int, rng: np.random.Generator) -> Scene:
    """p and batch size switch, each at its own pace."""
    return _alike(setting, rng, _any_p(setting, rng), _any_batch(setting, rng))


def heterogeneous(setting: Setting, index: int, rng: np.random.Generator) -> Scene:
    """Every request has its own acceptance and decay; the load switches."""
    scene = _alike(setting, rng, constant(0.0, setting.rounds), _any_batch(setting, rng), 1.0)
    requests = range(scene.population.arrivals.sum())
    p = np.array([random_p(rng) for _ in requests])
    return replace(scene, p=p, decay=np.array([random_decay(rng) for _ in requests]), per_request=True)


def bursts(setting: Setting, index: int, rng: np.random.Generator) -> Scene:
    """Open-loop arrivals: quiet stretches of a few requests, and bursts that fill the batch."""
    quiet, burst = rng.uniform(0.005, 0.05), rng.uniform(0.5, 2.0)
    calls = iter(range(setting.rounds))
    rate = switching(setting.rounds, rng, lambda: float(burst if next(calls) % 2 else quiet))
    return Scene(
        cost=setting.cost,
        population=open_loop(rate.values, rng, setting.max_batch),
        p=constant(random_p(rng), setting.rounds).values,
        decay=random_decay(rng),
        changes=rate.changes,
        given=setting.cost,
    )


def drift(setting: Setting, index: int, rng: np.random.Generator) -> Scene:
    """The GPU slows by 20%: all rounds, mostly deep or mostly shallow ones; at once or over 400 rounds."""
    start = int(rng.integers(setting.rounds // 4, setting.rounds // 2 + 1))
    span = (1, 400)[index % 2]
    progress = np.clip((np.arange(setting.rounds) - start) / span, 0.0, 1.0)
    depth = np.linspace(0.0, 1.0, setting.cost.steps[-1] + 1)
    weight = (np.ones_like(depth), depth, 1.0 - depth)[index % 3]
    scene = _alike(setting, rng, _any_p(setting, rng), _one_batch(setting, rng))
    return replace(scene, slowdown=1.0 + 0.2 * progress[:, None] * weight)


def mistaken(setting: Setting, index: int, rng: np.random.Generator, error: float) -> Scene:
    """The given profile is off by *error* in every cell; p and load switch."""
    return replace(both(setting, index, rng), given=setting.cost.mistaken(error, rng))


def bad_draft(setting: Setting, index: int, rng: np.random.Generator) -> Scene:
    """A draft that never fits (p = 0), that stops fitting for good, or that fails and recovers."""
    rounds = setting.rounds
    good, bad = rng.uniform(0.6, 0.95), (0.0, 0.05)[index % 2]
    collapse = int(rng.integers(300, 600))
    p = (
        constant(0.0, rounds),
        Schedule(np.where(np.arange(rounds) < collapse, good, bad), (collapse,)),
        alternating(rounds, collapse, good, bad),
    )[index % 3]
    return _alike(setting, rng, p, _one_batch(setting, rng))


def cold_start(setting: Setting, index: int, rng: np.random.Generator) -> Scene:
    """No profile at all; p and batch are constant."""
    p = constant(random_p(rng), setting.rounds)
    return replace(_alike(setting, rng, p, _one_batch(setting, rng)), given=None)


def step_change(setting: Setting, index: int, rng: np.random.Generator) -> Scene:
    """p jumps between 0.9 and 0.3 every 250 rounds at batch 8, 16, 32 or 64."""
    batch = min((8, 16, 32, 64)[index % 4], setting.max_batch)
    first, second = ((0.9, 0.3), (0.3, 0.9))[index // 4 % 2]
    p = alternating(setting.rounds, 250, first, second)
    return _alike(setting, rng, p, constant(batch, setting.rounds), 1.0)


@dataclass(frozen=True)
class Suite:
    """A family of traces; trace *i* depends only on the seed, the suite's name and *i*."""

    name: str
    title: str
    make: MakeScene
    noise: str | None = None
    """Kind of recorded noise. A suite with noise has every second trace of ``both``, but for the clock."""

    def indices(self, setting: Setting) -> range:
        """Return the numbers of its traces."""
        return range(0, setting.traces, 2 if self.noise else 1)

    def traces(self, setting: Setting) -> Iterator[Trace]:
        """Draw the traces one by one; each takes a few megabytes."""
        for index in self.indices(setting):
            rng = np.random.default_rng([setting.seed, index, *(BOTH if self.noise else self.name).encode()])
            trace = self.make(setting, index, rng).build(rng)
            yield replace(trace, clock=factors(self.noise, trace.rounds, rng)) if self.noise else trace


BOTH = "both"


SUITES: dict[str, Suite] = {
    suite.name: suite
    for suite in (
        Suite("stationary", "stationary grid", stationary),
        Suite("acceptance", "acceptance switching", acceptance),
        Suite("load", "load switching", load),
        Suite(BOTH, "both switching", both),
        Suite("heterogeneous", "heterogeneous batches", heterogeneous),
        Suite("bursts", "bursts of arrivals", bursts),
        Suite("drift", "cost drift of 20%", drift),
        Suite("profile-5", "profile off by 5%", partial(mistaken, error=0.05)),
        Suite("profile-15", "profile off by 15%", partial(mistaken, error=0.15)),
        Suite("bad-draft", "bad draft", bad_draft),
        Suite("cold-start", "cold start, no profile", cold_start),
        Suite("step-change", "p 0.9 to 0.3 and back", step_change),
        *(Suite(f"noise-{kind}", f"both switching, {title}", both, kind) for kind, title in KINDS.items()),
    )
}
