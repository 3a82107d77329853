"""From a configuration file to the policy that a server runs."""

from __future__ import annotations

from sglang_adaptive.policy.base import AdaptivePolicy
from sglang_adaptive.policy.config import load_config
from sglang_adaptive.policy.ema import AdaptiveSpeculativeParams
from sglang_adaptive.policy.throughput import ThroughputPolicy
from sglang_adaptive.sglang_plugin.profiles import load_shared


def resolve_candidate_steps(cfg_path: str | None = None) -> list[int]:
    """Return every depth that the configuration may choose, ascending; SGLang sizes its buffers from the last."""
    return load_config(cfg_path).candidate_steps


def build_policy(initial_steps: int, cfg_path: str | None = None) -> AdaptivePolicy:
    """Return the policy named by the configuration; called where SGLang builds its own."""
    config = load_config(cfg_path)
    if config.policy == "ema":
        return AdaptiveSpeculativeParams.from_config(initial_steps, config)
    return ThroughputPolicy(initial_steps, config.throughput, load_shared(config.throughput.profile_dir))
