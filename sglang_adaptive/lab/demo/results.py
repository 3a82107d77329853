"""Measured values, for the tables, the timeline and the report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sglang_adaptive.lab.demo.workload import Phase


@dataclass(frozen=True, slots=True)
class Contender:
    """A policy, fixed steps or no speculation, measured on one of the demo's servers."""

    key: str
    title: str
    server: str
    forced_steps: int | None = None
    """Steps that are held on the server; None for a policy and without speculation."""

    adaptive: bool = False


@dataclass(frozen=True, slots=True)
class Switch:
    """A switch by the policy; `time` is Unix time in seconds."""

    time: float
    from_steps: int
    to_steps: int


@dataclass(frozen=True, slots=True)
class PhaseResult:
    """One phase under one contender."""

    phase: Phase
    begin: float
    """Unix time in seconds."""

    seconds: float
    outputs: tuple[tuple[int, ...], ...]
    """Token ids that each request generated, in the order of the phase's prompts."""

    verify_rounds: int
    """Rounds, summed over the requests; 0 without speculation."""

    rounds_by_depth: Mapping[int, int]
    """Rounds of the server by steps; a round serves all running requests."""

    first_steps: int | None = None
    """Steps that were live when the phase began; None without speculation."""

    switches: tuple[Switch, ...] = ()
    switches_unseen: int = 0
    """Switches that the server counted but no longer lists."""

    @property
    def tokens(self) -> int:
        """Tokens generated."""
        return sum(map(len, self.outputs))


@dataclass(frozen=True, slots=True)
class Run:
    """All phases under one contender, in order; `degraded` is why its policy failed, if it did."""

    contender: Contender
    tiers: tuple[int, ...]
    """Steps with a runtime state, ascending; empty without speculation."""

    phases: tuple[PhaseResult, ...]
    degraded: str | None = None

    @property
    def switches(self) -> int:
        """Switches by the policy."""
        return sum(len(phase.switches) + phase.switches_unseen for phase in self.phases)

    def of(self, family: str | None) -> tuple[PhaseResult, ...]:
        """Return the phases of one family of text; all of them for None."""
        return tuple(result for result in self.phases if family in (None, result.phase.family))


def tokens_per_second(results: Iterable[PhaseResult]) -> float:
    """Return generated tokens over the wall time of the phases, as the client saw it."""
    measured = list(results)
    return sum(result.tokens for result in measured) / sum(result.seconds for result in measured)


def accept_length(results: Iterable[PhaseResult]) -> float | None:
    """Return the accept length; None without speculation."""
    measured = list(results)
    rounds = sum(result.verify_rounds for result in measured)
    return sum(result.tokens for result in measured) / rounds if rounds else None


def rounds_by_depth(results: Iterable[PhaseResult]) -> dict[int, int]:
    """Return the server's rounds by steps, ascending."""
    total: Counter[int] = Counter()
    for result in results:
        total.update(result.rounds_by_depth)
    return {depth: total[depth] for depth in sorted(total)}
