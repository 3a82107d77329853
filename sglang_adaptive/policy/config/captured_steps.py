"""What start-up built: a configuration that comes later can use these depths, and no other."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sglang_adaptive.policy.config.config import AdaptiveConfig
from sglang_adaptive.policy.config.schema import CANDIDATE_STEPS
from sglang_adaptive.policy.errors import ConfigError


@dataclass(frozen=True, slots=True)
class CapturedSteps:
    """The depths with a runtime state, and the batch sizes at which each has CUDA graphs."""

    graphs: Mapping[int, tuple[int, ...] | None]
    """By depth; None where graphs are off, or where every batch size that has any has this depth's."""

    @property
    def graph_sizes(self) -> list[int]:
        """Every batch size at which some depth has graphs, ascending; empty when that is not restricted."""
        return sorted({size for sizes in self.graphs.values() for size in sizes or ()})

    def at(self, batch_size: int) -> frozenset[int]:
        """Return the depths that have graphs at *batch_size*, one of ``graph_sizes``."""
        return frozenset(steps for steps, sizes in self.graphs.items() if sizes is None or batch_size in sizes)

    def require(self, config: AdaptiveConfig) -> None:
        """Refuse *config* if it needs what was not built.

        A depth without graphs would run, and only be slow. Start-up gives graphs to every depth that may run at a
        batch size, so a configuration that changes later is held to the same: a slot needs graphs for all of its
        depths. The throughput policy chooses among those that have them, and needs one.

        Raises:
            ConfigError: With one line that names the key, the depth and those that were built.
        """
        for place, steps, sizes in self._demands(config):
            missing = [depth for depth in steps if depth not in self.graphs]
            if missing:
                problem = f"needs {_listed(missing)}, which was not built when the server started"
                raise ConfigError(config.source, place, problem, f"depths among {_listed(self.graphs)}")
            for size in sizes:
                lacking = set(steps) - self.at(size)
                if lacking and (config.policy != "throughput" or lacking == set(steps)):
                    problem = f"needs {_listed(lacking)}, which has no CUDA graphs at batch size {size}"
                    raise ConfigError(config.source, place, problem, f"depths among {_listed(self.at(size))} there")

    def _demands(self, config: AdaptiveConfig) -> Iterator[tuple[str, tuple[int, ...], list[int]]]:
        """Yield the key of each list of depths, the list, and the batch sizes with graphs that it governs."""
        if config.policy != "ema":  # one list for every batch size, in the object that bears the policy's name
            yield f"{config.policy}.{CANDIDATE_STEPS}", tuple(config.candidate_steps), self.graph_sizes
            return
        starts = [0, *(slot.batch_size for slot in config.slots[1:])]  # the first slot also has what lies below it
        for slot, start, end in zip(config.slots, starts, [*starts[1:], math.inf], strict=True):
            sizes = [size for size in self.graph_sizes if start <= size < end]
            yield f"{slot.batch_size}.{CANDIDATE_STEPS}", slot.candidate_steps, sizes

    def as_pairs(self) -> list[list[Any]]:
        """Return ``graphs`` as JSON builtins: [steps, batch sizes or null] by depth."""
        return [[steps, None if sizes is None else list(sizes)] for steps, sizes in sorted(self.graphs.items())]

    @classmethod
    def from_pairs(cls, pairs: Iterable[Any]) -> CapturedSteps:
        """Return what ``as_pairs`` was made from."""
        return cls({int(steps): None if sizes is None else tuple(sizes) for steps, sizes in pairs})


def _listed(steps: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(steps)))
