"""One slot of a configuration: the tiers and tuning of a range of batch sizes, checked key by key."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from sglang_adaptive.policy.config import schema
from sglang_adaptive.policy.errors import ConfigError, shown


@dataclasses.dataclass(frozen=True, slots=True)
class SlotConfig:
    """What governs the batch sizes from ``batch_size`` up to the next slot; steps ascend without repeats."""

    batch_size: int
    candidate_steps: tuple[int, ...]
    ema_alpha: float
    update_interval: int
    warmup_batches: int
    down_hysteresis: float
    up_hysteresis: float
    ceiling_coeff: float

    def as_slot_cfg(self) -> dict[str, Any]:
        """Return the mapping that ``AdaptiveStepSlot`` takes."""
        return {**dataclasses.asdict(self), schema.CANDIDATE_STEPS: list(self.candidate_steps)}

    def as_entry(self) -> dict[str, Any]:
        """Return the value of this slot's key as ``check_slot`` takes it, every default spelt out."""
        entry = self.as_slot_cfg()
        del entry["batch_size"]
        return entry


def check_slot(key: str, entry: Any, shared: Mapping[str, Any], source: str) -> SlotConfig:
    """Check the value *entry* of the slot key *key*; *shared* are the checked top-level tuning keys.

    Raises:
        ConfigError: With one line that names file, key, value and what is accepted.
    """
    if not isinstance(entry, dict):
        expected = 'an object, as in {"candidate_steps": [1, 3, 7]}'
        raise ConfigError(source, key, f"got {shown(entry)}", expected)
    for name in entry:
        if name not in schema.SLOT_KEYS:
            raise unknown_key(source, f"{key}.{name}", name, schema.SLOT_KEYS, "one of")
    tuning: dict[str, Any] = {spec.name: spec.default for spec in schema.TUNING_KEYS}
    tuning |= {**shared, **check_tuning(entry, f"{key}.", source)}
    return SlotConfig(int(key), _candidate_steps(key, entry, source), **tuning)


def check_tuning(cfg: Mapping[str, Any], prefix: str, source: str) -> dict[str, Any]:
    """Return the tuning keys present in *cfg*; *prefix* is put before a key that an error names.

    Raises:
        ConfigError: As ``check_slot``.
    """
    found = {name: cfg[name] for name in schema.TUNING_BY_NAME if name in cfg}
    for name, value in found.items():
        spec = schema.TUNING_BY_NAME[name]
        if not spec.accepts(value):
            raise ConfigError(source, f"{prefix}{name}", f"got {shown(value)}", spec.expected)
    return found


def unknown_key(source: str, place: str, name: str, known: Sequence[str], intro: str) -> ConfigError:
    """Return the error for the key *name* at *place*; it names the nearest *known* key when one is near."""
    return ConfigError(source, place, "unknown key", f"{intro} {', '.join(known)}{nearest(name, known)}")


def nearest(name: str, known: Sequence[str]) -> str:
    """Return a remark naming the member of *known* that *name* resembles, or an empty string."""
    close = difflib.get_close_matches(name[:64].lower(), known, n=1)
    return f' (did you mean "{close[0]}"?)' if close else ""


def _candidate_steps(key: str, entry: Mapping[str, Any], source: str) -> tuple[int, ...]:
    place = f"{key}.{schema.CANDIDATE_STEPS}"
    if schema.CANDIDATE_STEPS not in entry:
        raise ConfigError(source, place, "missing", schema.CANDIDATE_STEPS_EXPECTED)
    steps = entry[schema.CANDIDATE_STEPS]
    if not isinstance(steps, list) or not steps:
        raise ConfigError(source, place, f"got {shown(steps)}", schema.CANDIDATE_STEPS_EXPECTED)
    for index, value in enumerate(steps):
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= schema.MAX_STEPS:
            expected = f"an integer from 0 to {schema.MAX_STEPS}"
            raise ConfigError(source, f"{place}[{index}]", f"got {shown(value)}", expected)
    return tuple(sorted(set(steps)))
