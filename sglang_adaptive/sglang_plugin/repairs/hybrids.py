"""Hybrid models, which keep a recurrent state beside the KV cache: where the depth may not change.

A verify pass leaves the state after each draft token in a scratch buffer, and the commit takes the one of the last
accepted token. SGLang 0.5.23 allocates the buffer as wide as the widest depth. Its Mamba2 kernels take the width of
the round as the distance of two requests, and the commit takes the buffer's own: at every narrower depth, all
requests but the first would go on from a state that is not theirs. GDN and KDA kernels take the buffer's own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def obstacle(server_args: Any) -> str | None:
    """Return why the depth of a server of this model may not change; None where it may, or where nothing is known.

    *server_args* name the model by a path or by a name whose configuration SGLang can load.
    """
    from sglang.srt.arg_groups.model_override_base import model_config_of
    from sglang.srt.arg_groups.overrides import resolved_view
    from sglang.srt.configs.hybrid_arch import mambaish_config

    try:
        model = model_config_of(server_args)
    except Exception:  # SGLang says itself what is wrong with the model
        return None
    if _runs_mamba2(model):
        return f"{type(model.hf_config).__name__}: SGLang's Mamba2 verify writes wrong states below the widest depth"
    if mambaish_config(model) is not None and resolved_view(server_args).enable_unified_memory:
        return "--enable-unified-memory keeps a hybrid model's verify states for the width of the launch alone"
    return None


def _runs_mamba2(model: Any) -> bool:
    """Whether SGLang would run Mamba2 layers; short convolutions share their configuration, not their kernels."""
    from sglang.srt.configs import Lfm2Config, Lfm2MoeConfig, Lfm2VlConfig, ZayaConfig
    from sglang.srt.configs.hybrid_arch import mamba2_config

    found = mamba2_config(model)
    return found is not None and not isinstance(found, (Lfm2Config, Lfm2MoeConfig, Lfm2VlConfig, ZayaConfig))


def price_the_widest(original: Callable[..., Any], configurator: Any, total_rest_memory: float) -> Any:
    """Around KVCacheConfigurator._handle_max_mamba_cache: price the scratch buffer as wide as it will be allocated.

    SGLang 0.5.23 prices the width of the launch, and so leaves too little memory where it begins below the widest.
    """
    from sglang.srt.runtime_context import get_spec, max_speculative_num_draft_tokens

    spec = get_spec()
    widest = max_speculative_num_draft_tokens() if spec.speculative_adaptive else None
    if widest is None:
        return original(configurator, total_rest_memory)
    with spec.override(speculative_num_draft_tokens=widest):
        return original(configurator, total_rest_memory)
