"""Hybrid models, which keep a recurrent state beside the KV cache: whether their steps may change.

A verify pass writes the state after each draft token to a scratch buffer, and the commit reads that of the last
accepted token. SGLang 0.5.23 allocates the buffer for the most draft tokens. Its Triton kernel of Mamba2 uses the
round's draft tokens as the distance between two requests; the commit uses the buffer's width. So with fewer draft
tokens all requests but the first would continue from a wrong state. GDN and KDA kernels use the buffer's width, and
``mamba2_width`` makes the Mamba2 kernel do so; reproduced and fixed on an H200.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def obstacle(server_args: Any) -> str | None:
    """Return why the steps of a server of this model may not change; None where they may, or nothing is known.

    *server_args* name the model by a path or by a name whose configuration SGLang can load.
    """
    from sglang.srt.arg_groups.model_override_base import model_config_of
    from sglang.srt.arg_groups.overrides import resolved_view
    from sglang.srt.configs import InklingMMConfig, InklingModelConfig
    from sglang.srt.configs.hybrid_arch import mambaish_config

    try:
        model = model_config_of(server_args)
    except Exception:  # SGLang itself reports what is wrong with the model
        return None
    if isinstance(model.hf_config, (InklingMMConfig, InklingModelConfig)):
        # save_intermediate_conv_windows asserts that a verify is as wide as the buffer.
        return "Inkling's short convolutions keep a verify's states for the widest depth alone"
    given = resolved_view(server_args)
    if given.mamba_backend != "triton" and _runs_mamba2(model):
        return f"--mamba-backend {given.mamba_backend}: no GPU has shown its Mamba2 states right below the widest depth"
    if mambaish_config(model) is not None and given.enable_unified_memory:
        return "--enable-unified-memory keeps a hybrid model's verify states for the width of the launch alone"
    return None


def _runs_mamba2(model: Any) -> bool:
    """Whether SGLang would run Mamba2 layers; short convolutions share their configuration, not their kernels."""
    from sglang.srt.configs import Lfm2Config, Lfm2MoeConfig, Lfm2VlConfig, ZayaConfig
    from sglang.srt.configs.hybrid_arch import mamba2_config

    found = mamba2_config(model)
    return found is not None and not isinstance(found, (Lfm2Config, Lfm2MoeConfig, Lfm2VlConfig, ZayaConfig))


def price_the_widest(original: Callable[..., Any], configurator: Any, total_rest_memory: float) -> Any:
    """Let SGLang's *original*, _handle_max_mamba_cache, budget the scratch buffer for the most draft tokens.

    SGLang 0.5.23 budgets it for the launch steps, and so reserves too little memory where these are not the most.
    """
    from sglang.srt.runtime_context import get_spec, max_speculative_num_draft_tokens

    spec = get_spec()
    widest = max_speculative_num_draft_tokens() if spec.speculative_adaptive else None
    if widest is None:
        return original(configurator, total_rest_memory)
    with spec.override(speculative_num_draft_tokens=widest):
        return original(configurator, total_rest_memory)
