"""A demo's workload and measured values, and what makes it fail."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice, zip_longest


class DemoError(RuntimeError):
    """A server failed; the message is one line, and `detail` the end of its log."""

    def __init__(self, message: str, detail: str = "") -> None:
        super().__init__(message)
        self.detail = detail


# Every contender's workload: easy, hard and easy text, first one request at a time, then several.


FAMILIES = ("easy", "hard", "easy")
SEVERAL = 4
"""Requests in flight together in the second half."""

REQUESTS = {1: 3, SEVERAL: 8}
"""Requests of a phase, by requests in flight."""


@dataclass(frozen=True, slots=True)
class Phase:
    """Requests for one kind of text at one concurrency, sent in order."""

    name: str
    family: str
    concurrency: int
    prompts: tuple[str, ...]
    max_new_tokens: int


def workload(prompts_of: Callable[[str], Sequence[str]], tokens: int) -> tuple[Phase, ...]:
    """Return the phases, each request generating *tokens*; *prompts_of* returns a family's prompts.

    Phases of one family use different prompts while there are enough, then start over.
    """
    pools = {family: cycle(prompts_of(family)) for family in FAMILIES}
    phases: list[Phase] = []
    for concurrency, requests in REQUESTS.items():
        for family in FAMILIES:
            name = f"{len(phases) + 1}-{family}-x{concurrency}"
            phases.append(Phase(name, family, concurrency, tuple(islice(pools[family], requests)), tokens))
    return tuple(phases)


# Measured values, for the tables, the timeline and the report.


@dataclass(frozen=True, slots=True)
class Contender:
    """A policy, fixed steps or no speculation, measured on one of the demo's servers."""

    title: str
    server: str
    forced_steps: int | None = None
    """Steps held on the server; None for a policy and without speculation."""
    adaptive: bool = False


@dataclass(frozen=True, slots=True)
class PhaseResult:
    """One phase under one contender."""

    phase: Phase
    begin: float
    """Unix time in seconds."""
    seconds: float
    outputs: tuple[tuple[int, ...], ...]
    """Token ids that each request generated, in prompt order."""
    verify_rounds: int
    """Rounds, summed over the requests; 0 without speculation."""
    rounds_by_depth: Mapping[int, int]
    """Rounds of the server by steps; a round serves all running requests."""
    first_steps: int | None = None
    """Steps that were live when the phase began; None without speculation."""
    switches: tuple[tuple[float, int], ...] = ()
    """Each switch by the policy: Unix time in seconds, and the steps from then on."""
    switches_unseen: int = 0
    """Switches that the server counted but no longer lists."""

    @property
    def tokens(self) -> int:
        """Tokens generated."""
        return sum(map(len, self.outputs))


@dataclass(frozen=True, slots=True)
class Run:
    """All phases under one contender, in order; `degraded` says why its policy failed, if it did."""

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
        """Return the phases of one family of text, or all phases for None."""
        return tuple(result for result in self.phases if family in (None, result.phase.family))


def tokens_per_second(results: Sequence[PhaseResult]) -> float:
    """Return generated tokens over the phases' wall time as seen by the client."""
    return sum(result.tokens for result in results) / sum(result.seconds for result in results)


def accept_length(results: Sequence[PhaseResult]) -> float:
    """Return the accept length; 0 without speculation."""
    rounds = sum(result.verify_rounds for result in results)
    return sum(result.tokens for result in results) / rounds if rounds else 0.0


def rounds_by_depth(results: Sequence[PhaseResult]) -> Counter[int]:
    """Return the server's rounds by steps."""
    return sum((Counter(result.rounds_by_depth) for result in results), Counter[int]())


def mean_steps(results: Sequence[PhaseResult]) -> float:
    """Return the mean steps of the server's rounds; 0 if there are none."""
    counts = rounds_by_depth(results)
    return sum(depth * count for depth, count in counts.items()) / max(1, counts.total())


def best_static(runs: Sequence[Run]) -> Run:
    """Return the fixed steps with the highest overall tokens/s."""
    static = [run for run in runs if run.contender.forced_steps is not None]
    return max(static, key=lambda run: tokens_per_second(run.phases))


# What fails a demo. Speculation may change the speed but never the text.


MISMATCHES_SHOWN = 5
_SHOWN_OF_PROMPT = 40


def failures(runs: Sequence[Run], wrong: Sequence[str], *, moves: bool) -> list[str]:
    """Return one line per failure, of *wrong* only some.

    *moves* says whether an adaptive run that never switched counts as one.
    """
    lines = list(wrong[:MISMATCHES_SHOWN])
    if len(wrong) > MISMATCHES_SHOWN:
        lines.append(f"and {len(wrong) - MISMATCHES_SHOWN} more requests with different tokens")
    for run in runs:
        if run.degraded is not None:
            lines.append(f"{run.contender.title}: the policy was set aside: {run.degraded}")
        elif moves and run.contender.adaptive and not run.switches:
            lines.append(f"{run.contender.title}: the depth never moved")
    return lines


def mismatches(baseline: Run, run: Run) -> list[str]:
    """Return a line for each request whose tokens in *run* differ from those in *baseline*, with the first of them."""
    found = []
    for plain, other in zip(baseline.phases, run.phases, strict=True):
        for prompt, expected, got in zip(plain.phase.prompts, plain.outputs, other.outputs, strict=True):
            shown = prompt if len(prompt) <= _SHOWN_OF_PROMPT else prompt[:_SHOWN_OF_PROMPT] + "..."
            where = f"{run.contender.title}, phase {plain.phase.name}, prompt {shown!r}"
            pairs = enumerate(zip_longest(expected, got, fillvalue="missing"))
            different = (
                f"{where}: token {at} is {token}, without speculation {wanted}"
                for at, (wanted, token) in pairs
                if wanted != token
            )
            found += islice(different, 1)
    return found
