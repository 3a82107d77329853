"""The behaviour of a checked configuration, as JSON builtins; its policy's options say most of it."""

from __future__ import annotations

from typing import Any

from sglang_adaptive.policy import options
from sglang_adaptive.policy.config import AdaptiveConfig


def facts(config: AdaptiveConfig) -> dict[str, Any]:
    """Return policy, steps, behaviour by batch size, and differences from the defaults."""
    of_policy = config.options.facts()
    return {
        "policy": config.policy,
        "summary": config.options.summary,
        "candidate_steps": config.candidate_steps,
        "watch": config.watch,
        **of_policy,
        "changed": [*options.changed(config, ""), *of_policy["changed"]],
    }
