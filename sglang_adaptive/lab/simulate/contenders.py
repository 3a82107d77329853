"""The policies that a suite compares, by name, and user-supplied ones."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from sglang_adaptive.command_line import listed
from sglang_adaptive.lab.simulate.cost import RoundCost, SimulationError
from sglang_adaptive.lab.simulate.trace import Trace
from sglang_adaptive.policy.base import POLICIES, AdaptivePolicy
from sglang_adaptive.policy.choice import Choice, Coming, drafted
from sglang_adaptive.policy.config import check_config
from sglang_adaptive.policy.ema import AdaptiveSpeculativeParams, EmaOptions
from sglang_adaptive.policy.observation import RoundObservation
from sglang_adaptive.policy.profile import CostProfile, ProfileCell, ProfileKey, ordered

LOOKUPS = "lookups"
"""The throughput policy with lookups, which only recorded text has."""
GRAPH_BATCHES = [1, 2, 3, 4, 5, 6, 7, 8, *range(10, 33, 2), *range(36, 65, 4)]
"""Batch sizes with CUDA graphs; a batch between two of them is padded to the next."""
_KEY = ProfileKey("simulated", "simulated", "simulated", 1, 1, "simulated")


class Launch(Protocol):
    """What a server knows about a run before its first round."""

    @property
    def ladder(self) -> tuple[int, ...]:
        """Depths that may be chosen, ascending."""

    @property
    def given(self) -> RoundCost | None:
        """The cost profile given to the policy; None for a start without one."""


Make = Callable[[Launch], AdaptivePolicy]


@dataclass(frozen=True)
class Contender:
    """A policy under test; ``make`` builds a fresh one per trace from what a server would give it."""

    name: str
    make: Make
    steps: tuple[int, ...] = ()
    """Steps that it chooses from on any ladder; empty for those of the ladder."""


class StaticPolicy(AdaptivePolicy):
    """Always the same depth."""

    learns = False

    def __init__(self, steps: int) -> None:
        self._choice = drafted(steps)

    def choose(self, coming: Coming) -> Choice:
        """Return the depth."""
        return self._choice


class OraclePolicy(AdaptivePolicy):
    """Reads the best depth off the trace, round after round."""

    learns = False

    def __init__(self, launch: Launch) -> None:
        assert isinstance(launch, Trace), "the oracle reads a drawn trace"
        self._depths = iter(launch.oracle_depths.tolist())

    def choose(self, coming: Coming) -> Choice:
        """Return the depth with the highest expected tokens/s in this round."""
        return drafted(int(next(self._depths)))


class _AsSGLangFeedsIt(AdaptiveSpeculativeParams):
    """SGLang gives its policy accept counts and batch size, not the depth that drafted: they count for the live one."""

    def observe(self, observation: RoundObservation) -> None:
        """Learn from the round as one of the live depth."""
        observation.choice = self.choose(Coming(observation.batch_size))
        super().observe(observation)


BUILT_IN_EMA: Mapping[str, Any] = {
    "1": {"candidate_steps": [1, 3, 5, 7]}, "8": {"candidate_steps": [0, 1, 3], "down_hysteresis": 0.0},
    "32": {"candidate_steps": [0, 1], "down_hysteresis": 0.0}, "64": {"candidate_steps": [0], "down_hysteresis": 0.0},
}  # fmt: skip
"""SGLang 0.5.23's own slots, which it uses without a file."""


def _sglang_ema(launch: Launch, slots: Mapping[str, Any] | None = None) -> AdaptivePolicy:
    options = EmaOptions.read(slots or {"1": {"candidate_steps": list(launch.ladder)}}, "simulator")
    steps = options.candidate_steps
    policy = _AsSGLangFeedsIt(steps[len(steps) // 2], options)
    policy.set_cuda_graph_bs(GRAPH_BATCHES)
    return policy


def profile_of(cost: RoundCost) -> CostProfile:
    """Return *cost* as the profile of a server."""
    cells = (ProfileCell(batch, steps, seconds) for (batch, steps), seconds in cost.cells().items())
    return CostProfile(_KEY, ordered(cells), "simulated")


def build(
    launch: Launch, policy: str = "throughput", graph_batches: list[int] | None = None, **options: Any
) -> AdaptivePolicy:
    """Return a fresh *policy* with these *options*, as a server would start it: at the middle of the ladder."""
    given = {"candidate_steps": list(launch.ladder), **options}
    config = check_config({"policy": policy, policy: given}, "simulator")
    profile = None if launch.given is None else profile_of(launch.given)
    made = config.build_policy(launch.ladder[len(launch.ladder) // 2], lambda: profile)
    made.set_cuda_graph_bs(graph_batches)
    return made


def _configured(policy: str, **options: Any) -> Make:
    return lambda launch: build(launch, policy, GRAPH_BATCHES, **options)


def static(steps: int) -> Contender:
    """Return the contender that always runs *steps*."""
    return Contender(f"static-{steps}", lambda launch: StaticPolicy(steps), (steps,))


def contenders(ladder: tuple[int, ...]) -> dict[str, Contender]:
    """Return every contender for *ladder*, by name, in the order of a report."""
    named = [
        Contender("oracle", OraclePolicy),
        Contender("throughput", _configured("throughput", lookup=False)),
        Contender("ema", partial(_sglang_ema, slots=BUILT_IN_EMA), EmaOptions.read(BUILT_IN_EMA, "").candidate_steps),
        Contender("ema-all", _sglang_ema),
        *(static(steps) for steps in ladder),
    ]
    known = {contender.name: contender for contender in named}
    return known | {name: Contender(name, _configured(name)) for name in POLICIES if name not in known}


def maker(name: str) -> Make:
    """Return the callable that *name*, such as ``package.module:callable``, refers to.

    It is called for every run, with a `Launch`, and returns a fresh `AdaptivePolicy`.

    Raises:
        SimulationError: the module or the name does not exist, or it is not callable. The returned callable
            raises it when *name* fails.
    """
    module, _, attribute = name.partition(":")
    try:
        made: Any = getattr(importlib.import_module(module), attribute)
    except Exception as error:
        raise SimulationError(f"--policy {name}: {type(error).__name__}: {error}; expected MODULE:CALLABLE") from error
    if not callable(made):
        raise SimulationError(f"--policy {name}: a {type(made).__name__}; expected a callable that makes a policy")

    def make(launch: Launch) -> AdaptivePolicy:
        try:
            policy: AdaptivePolicy = made(launch)
        except Exception as error:
            raise SimulationError(
                f"--policy {name}: {type(error).__name__}: {error}; "
                "expected a callable that takes a Launch and returns a policy"
            ) from error
        return policy

    return make


def chosen(
    names: Sequence[str] | None, ladder: tuple[int, ...], timed: Iterable[int] | None = None
) -> tuple[list[Contender], list[str]]:
    """Return the contenders called *names*, and a sentence on each that may choose steps without times.

    Without *names* they are all but the one with lookups. The *timed* steps are those of *ladder* by default.

    Raises:
        SimulationError: a name is unknown, or all are left out.
    """
    known = contenders(ladder)
    wanted = list(known) if names is None else names
    known[LOOKUPS] = Contender(LOOKUPS, _configured("throughput", lookup=True))
    for name in wanted:
        if ":" in name:
            known[name] = Contender(name, maker(name))
        elif name not in known:
            raise SimulationError(f"--policy {name}: unknown; expected one of {', '.join(known)} or MODULE:CALLABLE")
    fit, left_out, times = [], [], set(ladder if timed is None else timed)
    for name, contender in known.items():
        if name not in wanted:
            continue
        if missing := sorted(set(contender.steps) - times):
            left_out.append(f"{name} is left out: the profile has no round times for {listed(missing)} steps")
        else:
            fit.append(contender)
    if left_out and not fit:
        raise SimulationError("; ".join(left_out))
    return fit, left_out
