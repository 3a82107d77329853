"""The steps of an answer's rounds, from the server's counts before and after it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sglang_adaptive.client import Client

MOST_DEPTHS = 3
"""The most numbers of steps that are listed, those with the most rounds first."""


@dataclass(frozen=True, slots=True)
class Drafting:
    """Rounds of the whole server by steps, those of concurrent requests included."""

    rounds: Mapping[int, int]

    @property
    def total(self) -> int:
        """Rounds at all steps."""
        return sum(self.rounds.values())

    @property
    def mean_steps(self) -> float:
        """Mean steps of a round."""
        return sum(steps * count for steps, count in self.rounds.items()) / self.total

    def since(self, before: Drafting) -> Drafting:
        """Return the rounds since *before*."""
        new = {steps: count - before.rounds.get(steps, 0) for steps, count in self.rounds.items()}
        return Drafting({steps: count for steps, count in new.items() if count > 0})

    def __str__(self) -> str:
        most = sorted(self.rounds.items(), key=lambda entry: -entry[1])[:MOST_DEPTHS]
        return ", ".join(f"{steps}: {count / self.total:.0%}" for steps, count in most)


def drafting(client: Client) -> Drafting | None:
    """Return the rounds that the server has decoded so far; None when it does not adapt. Raises what Client does."""
    state: dict[str, Any] | None = client.server_info()["internal_states"][0].get("adaptive")
    if state is None or not state["active"]:
        return None
    return Drafting({int(steps): count for steps, count in state["rounds_by_tier"].items()})
