"""What a policy decides before a round, and what it can choose from."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

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


@dataclass(frozen=True, slots=True)
class CapturedSteps:
    """The depths with a runtime state from start-up; a later configuration can use no others."""

    graphs: Mapping[int, tuple[int, ...] | None]
    """By depth, the batch sizes with CUDA graphs; None if graphs are off, or if this depth has graphs at every size at
    which any depth has."""
    lookups: frozenset[int] = frozenset()
    """The depths that look drafts up instead of drafting."""

    @property
    def graph_sizes(self) -> list[int]:
        """Every batch size at which some depth has graphs, ascending; empty if no depth is restricted."""
        return sorted({size for sizes in self.graphs.values() for size in sizes or ()})

    def at(self, batch_size: int) -> frozenset[int]:
        """Return the depths that have graphs at *batch_size*, one of ``graph_sizes``."""
        return frozenset(steps for steps, sizes in self.graphs.items() if sizes is None or batch_size in sizes)

    def as_pairs(self) -> list[list[Any]]:
        """Return it as JSON builtins: [steps, batch sizes or null, whether it looks up] by depth."""
        return [
            [steps, None if sizes is None else list(sizes), steps in self.lookups]
            for steps, sizes in sorted(self.graphs.items())
        ]

    @classmethod
    def from_pairs(cls, pairs: Iterable[Any]) -> CapturedSteps:
        """Return the inverse of ``as_pairs``."""
        graphs = {int(steps): None if sizes is None else tuple(sizes) for steps, sizes, _ in pairs}
        return cls(graphs, frozenset(int(steps) for steps, _, looks_up in pairs if looks_up))
