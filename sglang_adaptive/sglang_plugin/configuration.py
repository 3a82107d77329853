"""The configuration that a server was launched with, in each of its processes."""

from __future__ import annotations

from sglang_adaptive.policy.config import AdaptiveConfig, load_config


def configuration() -> AdaptiveConfig:
    """Return the configuration of the server that this process belongs to."""
    from sglang.srt.runtime_context import get_spec

    return load_config(get_spec().speculative_adaptive_config)
