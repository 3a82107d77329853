"""SGLang's documented moving-average policy: one slot for each range of batch sizes.

``AdaptiveStepSlot`` and ``AdaptiveSpeculativeParams`` decide like the code of the same names in SGLang 0.5.23
(``speculative/adaptive_spec_params.py``). The arithmetic keeps SGLang's order of operations, so averages agree to the
last bit and cross thresholds in the same round.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from typing import Annotated, Any, ClassVar

from sglang_adaptive.policy import options as opt
from sglang_adaptive.policy.base import AdaptivePolicy, register
from sglang_adaptive.policy.choice import Choice, Coming, drafted
from sglang_adaptive.policy.errors import ConfigError, shown
from sglang_adaptive.policy.observation import RoundObservation
from sglang_adaptive.policy.options import MAX_BATCH_SIZE, MAX_STEPS, PolicyOptions, integer, number

SLOT_KEY_EXPECTED = f'a batch size from "1" to "{MAX_BATCH_SIZE}" as digits, without sign or leading zero'
_SLOT_KEY = re.compile(r"[1-9][0-9]{0,6}")
_LIKE_A_NUMBER = re.compile(r"\s*[-+]?\.?\d[\d._eE+-]*\s*")
_SLOT_EXAMPLE = '{"1": {"candidate_steps": [1, 3, 7]}}'


# -- options ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SlotConfig:
    """Settings for the batch sizes from ``batch_size`` up to the next slot; steps ascend without repeats.

    As in SGLang, keys with a default may also be at the top level of a file, where they apply to every slot.
    """

    batch_size: int
    candidate_steps: Annotated[tuple[int, ...], opt.depths("depths that the slot may choose")]
    ema_alpha: Annotated[float, number("weight of the newest round in the average", 0.0, 1.0, above=True)] = 0.2
    update_interval: Annotated[int, integer("rounds between two decisions", 1, 1_000_000)] = 5
    warmup_batches: Annotated[int, integer("rounds to observe before decisions start", 0, 1_000_000)] = 10
    down_hysteresis: Annotated[float, number("added to the threshold for a drop", -MAX_STEPS, MAX_STEPS)] = -0.25
    up_hysteresis: Annotated[float, number("added to the threshold for a rise", -MAX_STEPS, MAX_STEPS)] = 0.0
    ceiling_coeff: Annotated[float, number("caps steps at ceil(average x this); 0 turns it off", 0.0, MAX_STEPS)] = 0.0


TUNING: dict[str, Any] = {field.name: field.default for field in fields(SlotConfig) if field.default is not MISSING}
"""The tuning keys and their defaults."""


@dataclass(frozen=True, slots=True)
class EmaOptions(PolicyOptions):
    """The slots, ascending by batch size; their keys are at the top level of a file, as in SGLang.

    A digit key is a slot, and the tuning keys are defaults for every slot.
    """

    slots: tuple[SlotConfig, ...]
    summary: ClassVar[str] = (
        "each range of batch sizes follows a moving average of its accepted draft tokens per request."
    )

    @property
    def candidate_steps(self) -> tuple[int, ...]:  # type: ignore[override]
        """Every depth that a slot may choose, ascending."""
        return tuple(sorted({steps for slot in self.slots for steps in slot.candidate_steps}))

    @classmethod
    def listed_keys(cls) -> tuple[str, ...]:
        return tuple(TUNING)

    @classmethod
    def owns(cls, key: str, source: str) -> bool:
        if key in TUNING or (_SLOT_KEY.fullmatch(key) is not None and int(key) <= MAX_BATCH_SIZE):
            return True
        if _LIKE_A_NUMBER.fullmatch(key):
            raise ConfigError(source, key, "not a slot key", SLOT_KEY_EXPECTED)
        if key == "candidate_steps":
            raise ConfigError(source, key, "given outside a slot", f"it inside one, as in {_SLOT_EXAMPLE}")
        return False

    @classmethod
    def beside(cls, key: str, chosen: str, source: str) -> ConfigError:
        problem = f'{"a tuning key" if key in TUNING else "a slot"} of the policy "ema"'
        return ConfigError(source, key, problem, f'no such key with "policy": "{chosen}"; or "policy": "ema"')

    @classmethod
    def read(cls, cfg: Mapping[str, Any], source: str) -> EmaOptions:
        keys = sorted((key for key in cfg if cls.owns(key, source) and key not in TUNING), key=int)
        if not keys:
            problem = f"no slot among the keys {shown(list(cfg))}"
            raise ConfigError(source, None, problem, f"at least one, as in {_SLOT_EXAMPLE}")
        known = opt.options_of(SlotConfig)
        shared = {name: known[name].check(cfg[name], name, source) for name in TUNING if name in cfg}
        slots = []
        for key in keys:
            entry = cfg[key]
            if not isinstance(entry, dict):
                expected = 'an object, as in {"candidate_steps": [1, 3, 7]}'
                raise ConfigError(source, key, f"got {shown(entry)}", expected)
            slots.append(SlotConfig(int(key), **shared | opt.checked(SlotConfig, entry, f"{key}.", source)))
        return cls(tuple(slots))

    def as_dict(self) -> dict[str, Any]:
        return {str(slot.batch_size): opt.as_dict(slot) for slot in self.slots}

    def up_to(self, most: int) -> EmaOptions:
        kept = (replace(slot, candidate_steps=opt.depths_up_to(most, slot.candidate_steps)) for slot in self.slots)
        return EmaOptions(tuple(kept))

    def depths_by_batch(self) -> Iterator[tuple[str, tuple[int, ...], float, float]]:
        """Yield the key, depths and batch sizes of each slot; the first slot includes smaller batches."""
        starts = [0, *(slot.batch_size for slot in self.slots[1:]), math.inf]
        for slot, start, end in zip(self.slots, starts, starts[1:], strict=False):
            yield f"{slot.batch_size}.candidate_steps", slot.candidate_steps, start, end

    def facts(self) -> dict[str, Any]:
        launch = self.candidate_steps[len(self.candidate_steps) // 2]  # SGLang's default initial steps
        slots = [
            {
                "batch_range": [max(1, start), None if end == math.inf else end - 1],
                "candidate_steps": list(slot.candidate_steps),
                "starts_at": AdaptiveStepSlot(launch, slot).current_steps,
                "moves": [_moves(slot, steps) for steps in slot.candidate_steps],
                "first_decision_after_rounds": slot.warmup_batches + slot.update_interval,
                "rounds_between_decisions": slot.update_interval,
                "ema_alpha": slot.ema_alpha,
                "ceiling_coeff": slot.ceiling_coeff,
            }
            for slot, (_, _, start, end) in zip(self.slots, self.depths_by_batch(), strict=True)
        ]
        return {"slots": slots, "changed": [c for slot in self.slots for c in opt.changed(slot, f"{slot.batch_size}.")]}


def _moves(slot: SlotConfig, steps: int) -> dict[str, Any]:
    """Return the slot's next steps below and above *steps*, and the average accepted drafts that trigger each move."""
    ladder, here = (None, *slot.candidate_steps, None), slot.candidate_steps.index(steps)
    drop_at, rise_above = AdaptiveStepSlot(steps, slot).thresholds
    moves = {"down_to": ladder[here], "drop_at": drop_at, "up_to": ladder[here + 2], "rise_above": rise_above}
    return {"steps": steps, **moves}


# -- one slot --------------------------------------------------------------------------------------------------------


class AdaptiveStepSlot:
    """Chooses among ``candidate_steps`` for one range of batch sizes.

    ``current_steps`` is always one of ``candidate_steps``. ``ema_accept_len`` counts accepted drafts per request
    without the bonus token, so it tends to ``current_steps`` if every draft is accepted.
    """

    def __init__(self, initial_steps: int, config: SlotConfig) -> None:
        """Start at *initial_steps* when it is a candidate, otherwise at the middle candidate."""
        self.config = config
        self.candidate_steps = list(config.candidate_steps)
        middle = self.candidate_steps[len(self.candidate_steps) // 2]
        self.current_steps = initial_steps if initial_steps in self.candidate_steps else middle
        self.ema_accept_len = float(self.current_steps - 1)
        self.batches = 0
        """Rounds learned from."""
        self.stale_rounds = 0
        """Rounds ignored because another depth drafted them."""

    def observe(self, observation: RoundObservation) -> None:
        """Learn from *observation* if the current depth drafted it."""
        if observation.steps != self.current_steps:
            # Accept counts are censored at the drafting depth: a late round of a shallower depth would lower the
            # average, and one of a deeper depth would raise it.
            self.stale_rounds += 1
        elif observation.num_correct_drafts_per_req:
            self.update(observation.num_correct_drafts_per_req)

    def update(self, num_correct_drafts_per_req: Sequence[int]) -> None:
        """Learn from a round drafted at the current depth: counts by request, without the bonus token."""
        if self.current_steps > 0:
            alpha, mean = self.config.ema_alpha, sum(num_correct_drafts_per_req) / len(num_correct_drafts_per_req)
            self.ema_accept_len = (1 - alpha) * self.ema_accept_len + alpha * mean
        self.batches += 1
        after_warmup = self.batches - self.config.warmup_batches
        if after_warmup > 0 and not after_warmup % self.config.update_interval:
            self.current_steps = self._next_steps()

    def _next_steps(self) -> int:
        ladder, top, coeff = self.candidate_steps, len(self.candidate_steps) - 1, self.config.ceiling_coeff
        here = there = ladder.index(self.current_steps)
        if self.current_steps == 0:  # nothing is learned without drafts, so every decision tries the next depth
            probe = ladder[min(here + 1, top)]
            if probe > 0 and self.ema_accept_len < 0:  # a slot that started at zero has no average yet
                self.ema_accept_len = float(probe - 1)
            return probe
        while there > 0 and self.ema_accept_len <= self._drop_threshold(there):
            there -= 1
        if there == here:
            while there < top and self.ema_accept_len > self._rise_threshold(there):
                there += 1
        if coeff > 0 and there <= here:  # a rise is exempt, so that a deeper depth can show what it accepts
            ceiling = max(1, math.ceil(self.ema_accept_len * coeff))
            while there > 0 and ladder[there] > ceiling:
                there -= 1
        return ladder[there]

    def _drop_threshold(self, index: int) -> float:
        """Return the average at or below which the depth at *index* > 0 drops to the one before it."""
        below = self.candidate_steps[index - 1]
        # A drop to zero steps needs (nearly) no accepted drafts, not a negative average.
        return (below - 0.5 if below else 0.5) + self.config.down_hysteresis

    def _rise_threshold(self, index: int) -> float:
        """Return the average above which the depth at *index* rises to the next."""
        return self.candidate_steps[index] - 0.5 + self.config.up_hysteresis

    @property
    def thresholds(self) -> tuple[float | None, float | None]:
        """The averages at or below which the current depth drops, and above which it rises; None at an end.

        At zero steps both are None: every decision tries the next depth.
        """
        here = self.candidate_steps.index(self.current_steps)
        if self.current_steps == 0:
            return None, None
        at_top = here == len(self.candidate_steps) - 1
        return self._drop_threshold(here) if here else None, None if at_top else self._rise_threshold(here)


# -- the policy ------------------------------------------------------------------------------------------------------


@register(EmaOptions)
class AdaptiveSpeculativeParams(AdaptivePolicy):
    """Routes each batch size to its slot.

    A batch is padded to the next CUDA-graph batch size, like the round itself. It belongs to the slot with the largest
    lower bound that does not exceed the padded size; the first slot also takes smaller batches.
    """

    name = "ema"

    def __init__(self, initial_steps: int, options: EmaOptions) -> None:
        self.candidate_steps = list(options.candidate_steps)
        self.slots = tuple(AdaptiveStepSlot(initial_steps, slot) for slot in options.slots)
        """Ascending by batch size."""
        self._lower_bounds = [slot.batch_size for slot in options.slots]

    def set_cuda_graph_bs(self, cuda_graph_bs: list[int] | None) -> None:
        self._graph_sizes = sorted(cuda_graph_bs) if cuda_graph_bs else None

    def cuda_graph_bs_for_step(self, step: int) -> list[int] | None:
        if self._graph_sizes is None:
            return None
        return [bs for bs in self._graph_sizes if step in self.slots[self._slot_index(bs)].candidate_steps]

    def choose(self, coming: Coming) -> Choice:
        return drafted(self._route(coming.batch_size).current_steps)

    def observe(self, observation: RoundObservation) -> None:
        self._route(observation.batch_size).observe(observation)

    def snapshot(self) -> dict[str, Any]:
        slots = [
            {
                "batch_range": self._batch_range(index),
                "steps": slot.current_steps,
                "ema_accept_len": slot.ema_accept_len,
                "drop_at": slot.thresholds[0],
                "rise_above": slot.thresholds[1],
                "batches": slot.batches,
                "stale_rounds": slot.stale_rounds,
                "candidate_steps": list(slot.candidate_steps),
            }
            for index, slot in enumerate(self.slots)
        ]
        return {"policy": self.name, "slots": slots}

    def _batch_range(self, index: int) -> list[int | None] | None:
        """Return [smallest, largest] batch size routed to a slot; None when padding leaves it none."""
        smallest = self._smallest_batch(index)
        if index + 1 == len(self.slots):
            return [smallest, None]
        largest = self._smallest_batch(index + 1) - 1
        return [smallest, largest] if smallest <= largest else None

    def _smallest_batch(self, index: int) -> int:
        """Return the smallest batch size that pads to the slot's lower bound or beyond."""
        if index == 0:
            return 1
        bound = self._lower_bounds[index]
        graph_bs = self._graph_sizes or []
        padded = bisect_left(graph_bs, bound)
        if padded == len(graph_bs):  # beyond the largest graph nothing is padded
            return bound
        return graph_bs[padded - 1] + 1 if padded else 1

    def _route(self, batch_size: int) -> AdaptiveStepSlot:
        graph_bs = self._graph_sizes or ()
        index = bisect_left(graph_bs, batch_size)
        return self.slots[self._slot_index(graph_bs[index] if index < len(graph_bs) else batch_size)]

    def _slot_index(self, padded_batch_size: int) -> int:
        return max(0, bisect_right(self._lower_bounds, padded_batch_size) - 1)
