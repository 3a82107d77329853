"""Builds the policy of a server from its configuration file."""

from __future__ import annotations

from typing import Any

from sglang_adaptive.policy import base
from sglang_adaptive.policy.base import AdaptivePolicy, KeepsProfile, TakesOver
from sglang_adaptive.policy.config import AdaptiveConfig, CapturedSteps, load_config
from sglang_adaptive.policy.profile import CostProfile
from sglang_adaptive.sglang_plugin.start.profiles import load_shared, share_known
from sglang_adaptive.sglang_plugin.workers.arguments import drafts_blocks
from sglang_adaptive.sglang_plugin.workers.choice import drafts_layers


def build_policy(initial_steps: int, cfg_path: str | None = None, spec: Any = None) -> AdaptivePolicy:
    """Return the policy that the configuration names; called where SGLang builds its own.

    With *spec*, SGLang's arguments for speculation, it is `fitted` to a draft that makes *initial_steps* at the most.
    """
    config = load_config(cfg_path)
    if spec is not None:
        config = fitted(config, initial_steps, spec)
    profile_dir = config.options.profile_dir
    return base.build_policy(config, initial_steps, lambda: load_shared(profile_dir))


def fitted(config: AdaptiveConfig, most: int, spec: Any) -> AdaptiveConfig:
    """Return what of *config* a server with the arguments *spec* can run: *most* steps where the draft bounds them."""
    if drafts_blocks(spec):
        return config.of_block(most)
    return config.up_to(most) if drafts_layers(spec) else config


def build_successor(
    config: AdaptiveConfig, former: AdaptivePolicy, live_steps: int, built: CapturedSteps
) -> AdaptivePolicy:
    """Return the policy of *config*, which starts at *live_steps* with the estimates of *former*.

    Every tensor-parallel rank calls it at the same round; rank 0 broadcasts its measured round times.
    """

    def profile() -> CostProfile | None:
        return share_known(former) if isinstance(former, KeepsProfile) else load_shared(config.options.profile_dir)

    policy = base.build_policy(config, live_steps, profile)
    if isinstance(policy, TakesOver):
        policy.take_over(former, built)
    return policy
