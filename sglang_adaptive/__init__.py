"""Adaptive speculative decoding for SGLang: the draft depth is chosen before every round."""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "AdaptiveSpeculativeParams": "sglang_adaptive.policy.ema",
    "SpecRuntimeState": "sglang_adaptive.runtime.states",
    "AdaptiveController": "sglang_adaptive.runtime.controller",
}
__all__ = ["AdaptiveController", "AdaptiveSpeculativeParams", "SpecRuntimeState", "__version__"]


def __getattr__(name: str) -> Any:
    """Load a public class at first use, so that importing the package costs nothing."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
