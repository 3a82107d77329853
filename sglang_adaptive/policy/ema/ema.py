"""The documented EMA policy: one slot for each range of batch sizes.

``AdaptiveStepSlot``, ``AdaptiveSpeculativeParams`` and ``resolve_candidate_steps_from_config`` take the place
of SGLang 0.5.23's classes of the same names and decide as they do.
"""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Any

from sglang_adaptive.policy.config.config import BUILT_IN, BUILT_IN_EMA, AdaptiveConfig, check_config, load_config
from sglang_adaptive.policy.ema.ema_slot import AdaptiveStepSlot
from sglang_adaptive.policy.errors import ConfigError
from sglang_adaptive.policy.observation import RoundObservation

__all__ = ["AdaptiveSpeculativeParams", "AdaptiveStepSlot", "resolve_candidate_steps_from_config"]


def resolve_candidate_steps_from_config(cfg_path: str | os.PathLike[str] | None = None) -> list[int]:
    """Return every depth that a slot of *cfg_path* may choose, ascending.

    Raises:
        ConfigError: The configuration is unusable.
    """
    return _ema_config(cfg_path).candidate_steps


def _ema_config(cfg_path: str | os.PathLike[str] | None) -> AdaptiveConfig:
    return check_config(BUILT_IN_EMA, BUILT_IN) if cfg_path is None else load_config(cfg_path)


class AdaptiveSpeculativeParams:
    """Routes each batch size to its slot; implements ``AdaptivePolicy``.

    A batch is padded to the next CUDA-graph batch size, as the round itself will be, and belongs to the slot
    with the largest lower bound that does not exceed it; the first slot also takes what lies below it.
    """

    name = "ema"
    config: AdaptiveConfig | None = None
    """What it was built from."""

    def __init__(self, initial_steps: int, cfg_path: str | os.PathLike[str] | None = None) -> None:
        """Build the slots of *cfg_path*, or SGLang's built-in ones; each starts as ``AdaptiveStepSlot`` says.

        Raises:
            ConfigError: The configuration is unusable, or names another policy.
        """
        self._set_up(initial_steps, _ema_config(cfg_path))

    @classmethod
    def from_config(cls, initial_steps: int, config: AdaptiveConfig) -> AdaptiveSpeculativeParams:
        """Build the slots of a configuration that has been read already.

        Raises:
            ConfigError: *config* is for another policy.
        """
        policy = cls.__new__(cls)
        policy._set_up(initial_steps, config)
        return policy

    def _set_up(self, initial_steps: int, config: AdaptiveConfig) -> None:
        if config.policy != self.name:
            raise ConfigError(config.source, "policy", f'is "{config.policy}"', f'"{self.name}"')
        self.config = config
        self._lower_bounds = [slot.batch_size for slot in config.slots]
        self._slots = [AdaptiveStepSlot(initial_steps, slot.as_slot_cfg()) for slot in config.slots]
        self._candidate_steps = config.candidate_steps
        self._cuda_graph_bs: list[int] | None = None

    @property
    def candidate_steps(self) -> list[int]:
        """Every depth that a slot may choose, ascending."""
        return self._candidate_steps

    @property
    def slots(self) -> tuple[AdaptiveStepSlot, ...]:
        """The slots, ascending by batch size."""
        return tuple(self._slots)

    def set_cuda_graph_bs(self, cuda_graph_bs: list[int] | None) -> None:
        """Pad to *cuda_graph_bs* from now on; None or empty when graphs are off."""
        self._cuda_graph_bs = sorted(cuda_graph_bs) if cuda_graph_bs else None

    def get_steps_for_batch(self, batch_size: int) -> int:
        """Return the current steps of the slot that serves *batch_size* requests."""
        return self._route(batch_size).current_steps

    def on_verify_complete(self, num_correct_drafts_per_req: Sequence[int], batch_size: int) -> int | None:
        """Learn from a round drafted at the live depth; return new steps, or None to stay."""
        slot = self._route(batch_size)
        return slot.current_steps if slot.update(num_correct_drafts_per_req) else None

    def observe(self, observation: RoundObservation) -> int | None:
        """Learn from a round if its slot's current depth drafted it; return new steps, or None to stay."""
        slot = self._route(observation.batch_size)
        return slot.current_steps if slot.observe(observation) else None

    def cuda_graph_bs_for_step(self, step: int) -> list[int] | None:
        """Return the CUDA-graph batch sizes at which *step* can be chosen; None when graphs are off."""
        if self._cuda_graph_bs is None:
            return None
        return [bs for bs in self._cuda_graph_bs if step in self._slots[self._slot_index(bs)].candidate_steps]

    def snapshot(self) -> dict[str, Any]:
        """Return each slot's state as JSON builtins, ascending by batch size."""
        described = [self._describe(index) for index in range(len(self._slots))]
        return {"policy": self.name, "slots": described}

    def _describe(self, index: int) -> dict[str, Any]:
        slot = self._slots[index]
        drop_at, rise_above = slot.thresholds
        return {
            "batch_range": self._batch_range(index),
            "steps": slot.current_steps,
            "ema_accept_len": slot.ema_accept_len,
            "drop_at": drop_at,
            "rise_above": rise_above,
            "batches": slot.batches,
            "stale_rounds": slot.stale_rounds,
            "candidate_steps": list(slot.candidate_steps),
        }

    def _batch_range(self, index: int) -> list[int | None] | None:
        """Return [smallest, largest] batch size routed to a slot; None when padding leaves it none."""
        smallest = self._smallest_batch(index)
        if index + 1 == len(self._slots):
            return [smallest, None]
        largest = self._smallest_batch(index + 1) - 1
        return [smallest, largest] if smallest <= largest else None

    def _smallest_batch(self, index: int) -> int:
        """Return the smallest batch size that pads to the slot's lower bound or beyond."""
        if index == 0:
            return 1
        bound = self._lower_bounds[index]
        graph_bs = self._cuda_graph_bs or []
        padded = bisect_left(graph_bs, bound)
        if padded == len(graph_bs):  # beyond the largest graph nothing is padded
            return bound
        return graph_bs[padded - 1] + 1 if padded else 1

    def _route(self, batch_size: int) -> AdaptiveStepSlot:
        return self._slots[self._slot_index(self._padded(batch_size))]

    def _padded(self, batch_size: int) -> int:
        if self._cuda_graph_bs is None:
            return batch_size
        index = bisect_left(self._cuda_graph_bs, batch_size)
        return self._cuda_graph_bs[index] if index < len(self._cuda_graph_bs) else batch_size

    def _slot_index(self, padded_batch_size: int) -> int:
        return max(0, bisect_right(self._lower_bounds, padded_batch_size) - 1)
