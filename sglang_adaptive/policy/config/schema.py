"""Every key that a configuration file may hold: its kind, range, default and meaning.

The checks and the configuration reference are both made from these tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

MAX_STEPS = 32
"""Deepest speculation that a configuration may ask for, in draft steps."""

MAX_BATCH_SIZE = 1_000_000
"""Largest batch size that may name a slot."""

SLOT_KEY_EXPECTED = f'a batch size from "1" to "{MAX_BATCH_SIZE}" as digits, without sign or leading zero'
CANDIDATE_STEPS = "candidate_steps"
CANDIDATE_STEPS_EXPECTED = f"a non-empty list of integers from 0 to {MAX_STEPS}, as in [1, 3, 7]"


@dataclass(frozen=True, slots=True)
class NumberKey:
    """A numeric key with its closed range; ``open_low`` leaves the lower end out."""

    name: str
    integer: bool
    default: float
    low: float
    high: float
    meaning: str
    open_low: bool = False

    @property
    def expected(self) -> str:
        """The accepted values, in words."""
        kind = "an integer" if self.integer else "a number"
        start = "above" if self.open_low else "from"
        end = "up to" if self.open_low else "to"
        return f"{kind} {start} {self.low:g} {end} {self.high:.15g}"

    def accepts(self, value: Any) -> bool:
        """Whether *value* has the kind and lies in the range; NaN, infinities and booleans never do."""
        if isinstance(value, bool) or not isinstance(value, int if self.integer else (int, float)):
            return False
        return self.low < value <= self.high if self.open_low else self.low <= value <= self.high


TUNING_KEYS: tuple[NumberKey, ...] = (
    NumberKey("ema_alpha", False, 0.2, 0.0, 1.0, "weight of the newest round in the average", open_low=True),
    NumberKey("update_interval", True, 5, 1, 1_000_000, "rounds between two decisions"),
    NumberKey("warmup_batches", True, 10, 0, 1_000_000, "rounds seen before the first decision"),
    NumberKey("down_hysteresis", False, -0.25, -MAX_STEPS, MAX_STEPS, "added to the threshold of a drop"),
    NumberKey("up_hysteresis", False, 0.0, -MAX_STEPS, MAX_STEPS, "added to the threshold of a rise"),
    NumberKey("ceiling_coeff", False, 0.0, 0.0, MAX_STEPS, "caps steps at ceil(average x this); 0 is off"),
)
"""Keys of the EMA policy; at the top level they are the default of every slot, as in SGLang."""


@dataclass(frozen=True, slots=True)
class Switch:
    """A top-level key that is true or false, of the server rather than of its policy."""

    name: str
    default: str
    """What holds when the key is left out, in words."""

    meaning: str

    @property
    def expected(self) -> str:
        """The accepted values, in words."""
        return "true or false"


SWITCHES: tuple[Switch, ...] = (
    Switch("warm_up", "true; false on a CPU", "run every depth at a ladder of batch sizes before the server is ready"),
    Switch("prune_graphs", "true", "capture CUDA graphs of a depth only for the batch sizes it can be chosen at"),
)

ZERO_STEP_EXTEND_EVERY = NumberKey(
    "zero_step_extend_every", True, 8, 1, MAX_STEPS + 1, "rounds at 0 steps between two runs of the draft"
)
"""Key of the server, whatever its policy; at most the deepest tier's width is used."""

TUNING_BY_NAME = {key.name: key for key in TUNING_KEYS}
SLOT_KEYS = (CANDIDATE_STEPS, *TUNING_BY_NAME)
WATCH = "watch"
WATCH_EXPECTED = "true or false"
OF_THE_SERVER = (WATCH, *(switch.name for switch in SWITCHES), ZERO_STEP_EXTEND_EVERY.name, "trace")
TOP_LEVEL_KEYS = ("policy", "throughput", *OF_THE_SERVER, *TUNING_BY_NAME)

POLICY_NAMES = ("ema", "throughput")
"""What a configuration may name; ``tests/unit/policy/test_every_policy.py`` finds the places that a new one lacks."""
