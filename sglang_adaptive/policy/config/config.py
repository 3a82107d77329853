"""The checked configuration: which policy runs, and what it was told."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from sglang_adaptive.policy.config import schema
from sglang_adaptive.policy.config.config_file import file_stamp, read_object
from sglang_adaptive.policy.config.slot_config import SlotConfig, check_slot, check_tuning, nearest, unknown_key
from sglang_adaptive.policy.config.throughput_options import ThroughputOptions, parse_options
from sglang_adaptive.policy.config.trace_options import TRACE, TraceOptions, parse_trace
from sglang_adaptive.policy.errors import ConfigError, shown

BUILT_IN = "built-in default"
BUILT_IN_EMA: Mapping[str, Any] = {
    "1": {"candidate_steps": [1, 3, 5, 7]},
    "8": {"candidate_steps": [0, 1, 3], "down_hysteresis": 0.0},
    "32": {"candidate_steps": [0, 1], "down_hysteresis": 0.0},
    "64": {"candidate_steps": [0], "down_hysteresis": 0.0},
}
"""SGLang 0.5.23's own slots: what the EMA policy runs on where no file is given."""

_SLOT_KEY = re.compile(r"[1-9][0-9]{0,6}")
_LIKE_A_NUMBER = re.compile(r"\s*[-+]?\.?\d[\d._eE+-]*\s*")
_SLOT_EXAMPLE = '{"1": {"candidate_steps": [1, 3, 7]}}'


@dataclass(frozen=True, slots=True)
class AdaptiveConfig:
    """A configuration in which every value has been checked; ``slots`` ascend by batch size."""

    policy: str
    slots: tuple[SlotConfig, ...]
    """The slots of the policy "ema"; empty for another."""
    source: str
    throughput: ThroughputOptions = field(default_factory=ThroughputOptions)
    watch: bool = False
    """Whether the server reads its file again when the file changes."""
    warm_up: bool | None = None
    """Whether to run every depth before the server is ready; None leaves it to the device."""
    prune_graphs: bool = True
    """Whether a depth gets CUDA graphs only for the batch sizes that it can be chosen at."""
    zero_step_extend_every: int = int(schema.ZERO_STEP_EXTEND_EVERY.default)
    """Rounds at 0 steps between two runs of the draft's extend; 1 is every round."""
    trace: TraceOptions | None = None
    """Where the server writes down its rounds; None for nowhere."""

    @property
    def candidate_steps(self) -> list[int]:
        """Every depth that the policy may choose, ascending; SGLang sizes its buffers from it."""
        if self.policy == "throughput":
            return list(self.throughput.candidate_steps)
        return sorted({steps for slot in self.slots for steps in slot.candidate_steps})

    def up_to(self, most: int) -> AdaptiveConfig:
        """Return this configuration without the depths above *most*; a slot that has no other gets *most* itself."""
        slots = tuple(replace(slot, candidate_steps=_up_to(most, slot.candidate_steps)) for slot in self.slots)
        ladder = _up_to(most, self.throughput.candidate_steps)
        return replace(self, slots=slots, throughput=replace(self.throughput, candidate_steps=ladder))

    def as_dict(self) -> dict[str, Any]:
        """Return a configuration object that means the same, with every default spelt out."""
        common: dict[str, Any] = {"policy": self.policy, schema.WATCH: self.watch, "prune_graphs": self.prune_graphs}
        common[schema.ZERO_STEP_EXTEND_EVERY.name] = self.zero_step_extend_every
        if self.warm_up is not None:
            common["warm_up"] = self.warm_up
        if self.trace is not None:
            common[TRACE] = self.trace.as_dict()
        if self.policy == "throughput":
            return {**common, "throughput": self.throughput.as_dict()}
        return {**common, **{str(slot.batch_size): slot.as_entry() for slot in self.slots}}


def _up_to(most: int, depths: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(steps for steps in depths if steps <= most) or (most,)


def load_config(path: str | os.PathLike[str] | None = None) -> AdaptiveConfig:
    """Read and check the configuration in *path*; without a path, return the throughput policy's defaults.

    A process parses a file once, and again only when the file has changed.

    Raises:
        ConfigError: With one line that names file, key, value and what is accepted.
    """
    if path is None:
        return check_config({}, BUILT_IN)
    return _load(os.fspath(path), file_stamp(path))


@lru_cache(maxsize=4)
def _load(path: str, stamp: tuple[int, int, int] | None) -> AdaptiveConfig:
    return check_config(read_object(path), path)


def check_config(cfg: Mapping[str, Any], source: str) -> AdaptiveConfig:
    """Check the JSON object *cfg*, read from *source*, and return it frozen.

    Raises:
        ConfigError: As ``load_config``.
    """
    for key in cfg:
        _check_top_level_key(key, source)
    if not isinstance(cfg.get(schema.WATCH, False), bool):
        raise ConfigError(source, schema.WATCH, f"got {shown(cfg[schema.WATCH])}", schema.WATCH_EXPECTED)
    slot_keys = sorted((key for key in cfg if _SLOT_KEY.fullmatch(key)), key=int)
    policy = _policy(cfg, bool(slot_keys), source)
    for other in schema.POLICY_NAMES:
        if other in cfg and other != policy:
            raise ConfigError(source, other, f'not an option of the policy "{policy}"', "no options of another policy")
    make = {"ema": _ema_config, "throughput": _throughput_config}[policy]
    every = _zero_step_extend_every(cfg, source)
    switches, trace = _switches(cfg, source), parse_trace(cfg, source)
    return replace(make(cfg, slot_keys, source), **switches, zero_step_extend_every=every, trace=trace)


def _switches(cfg: Mapping[str, Any], source: str) -> dict[str, Any]:
    given = [(switch, cfg[switch.name]) for switch in schema.SWITCHES if switch.name in cfg]
    for switch, value in given:
        if not isinstance(value, bool):
            raise ConfigError(source, switch.name, f"got {shown(value)}", switch.expected)
    return {switch.name: value for switch, value in given}


def _check_top_level_key(key: str, source: str) -> None:
    if key in schema.TOP_LEVEL_KEYS:
        return
    if _SLOT_KEY.fullmatch(key) and int(key) <= schema.MAX_BATCH_SIZE:
        return
    if _LIKE_A_NUMBER.fullmatch(key):
        raise ConfigError(source, key, "not a slot key", schema.SLOT_KEY_EXPECTED)
    if key == schema.CANDIDATE_STEPS:
        raise ConfigError(source, key, "given outside a slot", f"it inside one, as in {_SLOT_EXAMPLE}")
    raise unknown_key(source, key, key, schema.TOP_LEVEL_KEYS, "a batch size as digits or one of")


def _zero_step_extend_every(cfg: Mapping[str, Any], source: str) -> int:
    key = schema.ZERO_STEP_EXTEND_EVERY
    value = cfg.get(key.name, int(key.default))
    if not key.accepts(value):
        raise ConfigError(source, key.name, f"got {shown(value)}", key.expected)
    return int(value)


def _policy(cfg: Mapping[str, Any], has_slots: bool, source: str) -> str:
    """Return the policy that is named, or else meant: slots and their keys speak of "ema"."""
    if "policy" not in cfg:
        return "ema" if has_slots or any(name in cfg for name in schema.TUNING_BY_NAME) else "throughput"
    name = cfg["policy"]
    if not isinstance(name, str) or name not in schema.POLICY_NAMES:
        known = " or ".join(f'"{policy}"' for policy in schema.POLICY_NAMES)
        hint = nearest(name, schema.POLICY_NAMES) if isinstance(name, str) else ""
        raise ConfigError(source, "policy", f"got {shown(name)}", f"the policy {known}{hint}")
    return name


def _ema_config(cfg: Mapping[str, Any], slot_keys: list[str], source: str) -> AdaptiveConfig:
    if not slot_keys:
        problem = f"no slot among the keys {shown(list(cfg))}"
        raise ConfigError(source, None, problem, f"at least one, as in {_SLOT_EXAMPLE}")
    shared = check_tuning(cfg, "", source)
    slots = tuple(check_slot(key, cfg[key], shared, source) for key in slot_keys)
    return AdaptiveConfig("ema", slots, source, watch=cfg.get(schema.WATCH, False))


def _throughput_config(cfg: Mapping[str, Any], slot_keys: list[str], source: str) -> AdaptiveConfig:
    for key in (*slot_keys, *(name for name in schema.TUNING_BY_NAME if name in cfg)):
        problem = f'{"a slot" if key in slot_keys else "a tuning key"} of the policy "ema"'
        raise ConfigError(source, key, problem, 'no such key beside "policy": "throughput"; or "policy": "ema"')
    options = cfg.get("throughput", {})
    if not isinstance(options, dict):
        raise ConfigError(source, "throughput", f"got {shown(options)}", "an object of options")
    return AdaptiveConfig("throughput", (), source, parse_options(options, source), cfg.get(schema.WATCH, False))
