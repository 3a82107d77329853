"""The behaviour of a checked configuration, as JSON builtins, computed with the policy's own classes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import Any

from sglang_adaptive.policy.config.config import AdaptiveConfig
from sglang_adaptive.policy.config.schema import TUNING_KEYS
from sglang_adaptive.policy.config.slot_config import SlotConfig
from sglang_adaptive.policy.config.throughput_options import NUMBER_KEYS, VERIFY_BUDGET, ThroughputOptions
from sglang_adaptive.policy.ema.ema import AdaptiveSpeculativeParams
from sglang_adaptive.policy.ema.ema_slot import AdaptiveStepSlot

_MEANINGS = {key.name: key.meaning for key in (*TUNING_KEYS, *NUMBER_KEYS)} | {
    "candidate_steps": "depths that the policy may choose",
    VERIFY_BUDGET.name: VERIFY_BUDGET.meaning,
    "profile_dir": "where round times are kept between starts",
}


def facts(config: AdaptiveConfig) -> dict[str, Any]:
    """Return policy, steps, behaviour by batch size, and differences from the defaults."""
    found: dict[str, Any] = {
        "policy": config.policy,
        "candidate_steps": config.candidate_steps,
        "watch": config.watch,
    }
    if config.policy == "ema":
        return {**found, "slots": _slots(config), "changed": [c for slot in config.slots for c in _tuned(slot)]}
    options = {field.name: _builtin(getattr(config.throughput, field.name)) for field in fields(ThroughputOptions)}
    return {**found, "options": options, "changed": list(_chosen(options))}


def _slots(config: AdaptiveConfig) -> list[dict[str, Any]]:
    launch = config.candidate_steps[len(config.candidate_steps) // 2]  # what SGLang starts at when it is not told
    described = AdaptiveSpeculativeParams.from_config(launch, config).snapshot()["slots"]
    return [
        {
            "batch_range": seen["batch_range"],
            "candidate_steps": list(slot.candidate_steps),
            "starts_at": seen["steps"],
            "moves": [_moves(slot, steps) for steps in slot.candidate_steps],
            "first_decision_after_rounds": slot.warmup_batches + slot.update_interval,
            "rounds_between_decisions": slot.update_interval,
            "ema_alpha": slot.ema_alpha,
            "ceiling_coeff": slot.ceiling_coeff,
        }
        for slot, seen in zip(config.slots, described, strict=True)
    ]


def _moves(slot: SlotConfig, steps: int) -> dict[str, Any]:
    """Return the steps that follow *steps* in the slot, and the averages of accepted drafts at which they do."""
    ladder = slot.candidate_steps
    here = ladder.index(steps)
    drop_at, rise_above = AdaptiveStepSlot(steps, slot.as_slot_cfg()).thresholds
    return {
        "steps": steps,
        "down_to": ladder[here - 1] if here else None,
        "drop_at": drop_at,
        "up_to": ladder[here + 1] if here + 1 < len(ladder) else None,
        "rise_above": rise_above,
    }


def _tuned(slot: SlotConfig) -> Iterable[dict[str, Any]]:
    for key in TUNING_KEYS:
        value = getattr(slot, key.name)
        if value != key.default:
            yield _change(f"{slot.batch_size}.{key.name}", key.name, value, key.default)


def _chosen(options: dict[str, Any]) -> Iterable[dict[str, Any]]:
    defaults = ThroughputOptions()
    for name, value in options.items():
        default = _builtin(getattr(defaults, name))
        if value != default:
            yield _change(f"throughput.{name}", name, value, default)


def _change(key: str, name: str, value: Any, default: Any) -> dict[str, Any]:
    return {"key": key, "value": value, "default": default, "meaning": _MEANINGS.get(name, name)}


def _builtin(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
