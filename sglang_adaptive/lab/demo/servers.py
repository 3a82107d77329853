"""The servers of the demo and their arguments."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sglang_adaptive.lab.demo.results import Contender

PLAIN = "none"
TITLES = {"ema": "EMA", "throughput": "throughput"}
"""Policies that the demo can show, in the order of its tables."""

STATIC_DEPTHS = (1, 3, 7)
LAUNCH_STEPS = 3
CONFIGS = {
    "ema": {"policy": "ema", "1": {"candidate_steps": list(STATIC_DEPTHS)}},
    "throughput": {"policy": "throughput"},
}


@dataclass(frozen=True, slots=True)
class ServerSpec:
    """One server to start: SGLang's own arguments, as a user would give them."""

    key: str
    title: str
    arguments: tuple[str, ...]


def server_specs(policies: Sequence[str], target: str, draft: str, folder: Path) -> list[ServerSpec]:
    """Return one server without speculation and one for each policy, whose config is written to *folder*."""
    model = ("--model-path", target, "--served-model-name", "tiny")
    specs = [ServerSpec(PLAIN, "no speculation", model)]
    for policy in policies:
        config = folder / f"{policy}.json"
        config.write_text(json.dumps(CONFIGS[policy]) + "\n", encoding="utf-8")
        specs.append(ServerSpec(policy, TITLES[policy], (*model, *_speculation(draft, config))))
    return specs


def contenders(policies: Sequence[str], tiers: Sequence[int]) -> list[Contender]:
    """Return the contenders in measuring order; *tiers* are the steps of the first policy's server.

    Adaptive runs come before fixed steps, which are held on one of the same servers and would change the state of its
    policy.
    """
    adaptive = [Contender(policy, TITLES[policy], policy, adaptive=True) for policy in policies]
    held = [depth for depth in STATIC_DEPTHS if depth in tiers] or [depth for depth in tiers if depth]
    static = [Contender(f"static-{depth}", f"static {depth}", policies[0], depth) for depth in held]
    return [Contender(PLAIN, "no speculation", PLAIN), *adaptive, *static]


def _speculation(draft: str, config: Path) -> tuple[str, ...]:
    return (
        "--speculative-algorithm", "EAGLE3",
        "--speculative-draft-model-path", draft,
        "--speculative-eagle-topk", "1",
        "--speculative-num-steps", str(LAUNCH_STEPS),
        "--speculative-num-draft-tokens", str(LAUNCH_STEPS + 1),
        "--speculative-adaptive-config", str(config),
    )  # fmt: skip
