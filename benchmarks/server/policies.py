"""The policies that are compared, as SGLang arguments."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DEPTHS = (0, 1, 2, 3, 5, 7)
"""Static depths, and the tiers of this package's policies."""

SGLANG_ALL_TIERS: dict[str, Any] = {"1": {"candidate_steps": [0, 1, 2, 3, 4, 5, 7]}}

PLAN_STREAM = "SGLANG_ENABLE_OVERLAP_PLAN_STREAM"


@dataclass(frozen=True)
class Policy:
    """What one server is started with."""

    name: str
    speculate: bool = True
    arguments: tuple[str, ...] = ()
    config: Mapping[str, Any] | None = None
    """Content of the adaptive configuration's file; None for no file."""

    ours: bool = False
    """Whether this package's plugin is loaded; without it the server is stock SGLang."""

    saved_profile: bool = False
    variables: Mapping[str, str] = field(default_factory=dict)

    def files(self, folder: Path, profiles: Path) -> list[str]:
        """Write the configuration into *folder* and return the arguments that name it.

        A policy with a saved profile reads and keeps it in *profiles*; any other learns from nothing.
        """
        if self.config is None:
            return []
        config = dict(self.config)
        if config.get("policy") == "throughput":
            kept = profiles if self.saved_profile else folder / f"{self.name}-learnt"
            config["throughput"] = {"profile_dir": str(kept), **config.get("throughput", {})}
        path = folder / "configs" / f"{self.name}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(config))
        return ["--speculative-adaptive-config", str(path)]


def static(steps: int) -> Policy:
    """Return SGLang's EAGLE-3 at one depth. It has no static depth of 0 steps: that is forced on an adaptive server."""
    width = ("--speculative-num-steps", str(steps), "--speculative-num-draft-tokens", str(steps + 1))
    return Policy(f"static-{steps}", arguments=width)


_EVERY = (
    Policy("none", speculate=False),
    *(static(steps) for steps in DEPTHS if steps),
    Policy("sglang-ema", arguments=("--speculative-adaptive",)),
    Policy("sglang-ema-all", arguments=("--speculative-adaptive",), config=SGLANG_ALL_TIERS),
    Policy("ema", config={"policy": "ema", "1": {"candidate_steps": list(DEPTHS)}}, ours=True),
    Policy("throughput", config={"policy": "throughput"}, ours=True),
    Policy("throughput-budgets", config={"policy": "throughput", "throughput": {"verify_budget": True}}, ours=True),
    Policy("throughput-saved", config={"policy": "throughput"}, ours=True, saved_profile=True),
    Policy("throughput-plan-stream", config={"policy": "throughput"}, ours=True, variables={PLAN_STREAM: "1"}),
)
POLICIES = {policy.name: policy for policy in _EVERY}


def chosen(names: str) -> list[Policy]:
    """Return the policies of a comma-separated list; ``all`` is every one. Raises ValueError for another name."""
    wanted = list(POLICIES) if names == "all" else names.split(",")
    unknown = [name for name in wanted if name not in POLICIES]
    if unknown:
        raise ValueError(f"--policies: {unknown[0]} is none of {', '.join(POLICIES)}")
    return [POLICIES[name] for name in wanted]
