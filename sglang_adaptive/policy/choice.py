"""What a policy decides before a round."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from enum import Enum
from typing import NamedTuple

FORCED = "forced"
"""Why an operator's steps run."""


class Source(Enum):
    """Where the drafts of a round come from."""

    NOTHING = "nothing"
    DRAFT = "draft"
    """The draft model."""
    LOOKUP = "lookup"
    """Each request's own text."""


class Coming(NamedTuple):
    """The round that a policy chooses for."""

    batch_size: int
    requests: Sequence[Hashable] = ()
    """Their ids; empty if unknown."""


class Choice(NamedTuple):
    """What a round does; `drafted` makes one without lookups."""

    steps: int
    """Drafts per request that the target verifies."""
    source: Source
    probe: bool = False
    """Whether the round only serves to learn about these steps."""
    why: str = ""
    """Why the steps change if they do, as in ``runtime.counters.CAUSES``; empty if for the text or the batch size."""

    @property
    def state(self) -> tuple[Source, int]:
        """The key of the runtime state that it needs."""
        return self.source, self.steps


def drafted(steps: int, probe: bool = False, why: str = "") -> Choice:
    """Return the choice of *steps* of the draft model; 0 for no drafts."""
    return Choice(steps, Source.DRAFT if steps else Source.NOTHING, probe, why)
