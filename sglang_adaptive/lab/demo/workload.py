"""The workload of every contender: easy, hard and easy text, one request at a time and then several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

FAMILIES = ("easy", "hard", "easy")
SEVERAL = 4
"""Requests that are in flight together in the second half."""

REQUESTS = {1: 3, SEVERAL: 8}
"""Requests of a phase, by how many are in flight together."""


@dataclass(frozen=True, slots=True)
class Phase:
    """Requests for one kind of text at one concurrency, sent in order."""

    name: str
    family: str
    concurrency: int
    prompts: tuple[str, ...]
    max_new_tokens: int

    @property
    def spoken(self) -> str:
        """The phase's name in a progress line."""
        requests = "1 request" if self.concurrency == 1 else f"{self.concurrency} requests"
        return f"{self.family} text, {requests} at a time"


def workload(prompts_of: Callable[[str], Sequence[str]], tokens: int) -> tuple[Phase, ...]:
    """Return the phases, each request generating *tokens*; *prompts_of* gives the prompts of a family.

    Phases of one family use different prompts as long as there are enough, and then begin again.
    """
    taken = dict.fromkeys(FAMILIES, 0)
    phases: list[Phase] = []
    for concurrency, requests in REQUESTS.items():
        for family in FAMILIES:
            pool = prompts_of(family)
            chosen = tuple(pool[(taken[family] + i) % len(pool)] for i in range(requests))
            taken[family] += requests
            name = f"{len(phases) + 1}-{family}-x{concurrency}"
            phases.append(Phase(name, family, concurrency, chosen, tokens))
    return tuple(phases)
