"""Builds the policy of a server from its configuration file."""

from __future__ import annotations

from sglang_adaptive.policy.base import AdaptivePolicy
from sglang_adaptive.policy.config.captured_steps import CapturedSteps
from sglang_adaptive.policy.config.config import AdaptiveConfig, load_config
from sglang_adaptive.policy.ema.ema import AdaptiveSpeculativeParams
from sglang_adaptive.policy.throughput.policy import ThroughputPolicy
from sglang_adaptive.sglang_plugin.scheduler.profiles import load_shared, share_known


def resolve_candidate_steps(cfg_path: str | None = None) -> list[int]:
    """Return the candidate steps of all slots, ascending; SGLang sizes its buffers from the last."""
    return load_config(cfg_path).candidate_steps


def build_policy(initial_steps: int, cfg_path: str | None = None, most: int | None = None) -> AdaptivePolicy:
    """Return the policy that the configuration names; called where SGLang builds its own.

    With *most* it chooses no more steps than that, whatever the configuration says.
    """
    config = load_config(cfg_path)
    if most is not None:
        config = config.up_to(most)
    if config.policy == "ema":
        return AdaptiveSpeculativeParams.from_config(initial_steps, config)
    profile = load_shared(config.throughput.profile_dir)
    return ThroughputPolicy(initial_steps, config.throughput, profile, config)


def build_successor(
    config: AdaptiveConfig, former: AdaptivePolicy, live_steps: int, built: CapturedSteps
) -> AdaptivePolicy:
    """Return the policy of *config*, which starts at *live_steps* with the estimates of *former*.

    Every tensor-parallel rank calls it at the same round; rank 0 broadcasts its measured round times.
    """
    if config.policy == "ema":
        return AdaptiveSpeculativeParams.from_config(live_steps, config)
    learnt = former if isinstance(former, ThroughputPolicy) else None
    profile = load_shared(config.throughput.profile_dir) if learnt is None else share_known(learnt)
    policy = ThroughputPolicy(live_steps, config.throughput, profile, config)
    policy.keep_to_graphs(built)
    if learnt is not None:
        policy.inherit_from(learnt)
    return policy
