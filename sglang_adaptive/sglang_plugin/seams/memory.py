"""Sizes that SGLang derives from the draft tokens of the launch or of the most steps, though rounds may have others."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sglang_adaptive.sglang_plugin.contract import Need
from sglang_adaptive.sglang_plugin.hooks import EXECUTOR, SRT, Process, around, event, needs

if TYPE_CHECKING:
    from sglang_adaptive.sglang_plugin.round import Round


@around(
    "sglang.kernels.ops.mamba.triton_ops.ssu_dispatch.TritonSSUBackend.__call__",
    *("self", "intermediate_states_buffer", "cache_steps"),
)
def run_mamba2(original: Callable[..., None], backend: Any, *args: Any, **kwargs: Any) -> None:
    """Run SGLang's Triton kernel for Mamba2, which writes the state after each draft token."""
    from sglang_adaptive.sglang_plugin import repairs

    original(backend, *args, **repairs.mamba2_width_of_the_buffer(kwargs))


def _size(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Size for the maximum steps."""
    from sglang_adaptive.sglang_plugin import repairs

    return repairs.at_the_widest(original, *args, **kwargs)


around(
    SRT + "mem_cache.kv_cache_configurator.KVCacheConfigurator._handle_max_mamba_cache", "self", "total_rest_memory"
)(_size)
around(EXECUTOR + "pool_configurator.compute_swa_request_cap", "page_size", "window", "max_running_requests")(_size)
around(SRT + "mem_cache.deepseek_v4_memory_pool.resolve_compress_state_ring_size", "compress_ratio")(_size)
around(SRT + "mem_cache.deepseek_v4_memory_pool.get_swa_ring_size", "sliding_window", "is_speculative")(_size)
around(SRT + "runtime_context.cutedsl_moe_max_num_tokens")(_size)


@around(SRT + "mem_cache.memory_pool.ReqToTokenPool.__init__", "self", "size", "max_context_len")
def slot_table(original: Callable[..., None], pool: Any, *args: Any, **kwargs: Any) -> None:
    """Create the table of the requests' KV slots; a draft window needs twice the rows."""
    from sglang_adaptive.sglang_plugin.draft_window import rows

    original(pool, *args, **kwargs)
    rows.double_if_asked(pool)


@event(SRT + "mem_cache.kv_cache_configurator.KVCacheConfigurator._build_mha_kv_pool", "self", "max_total_num_tokens")
def kv_pool(now: Round, original: Callable[..., Any], configurator: Any, **kwargs: Any) -> Any:
    """Create the KV cache of a model with plain attention; a draft window needs a few more slots."""
    from sglang_adaptive.sglang_plugin.draft_window import sinks

    return sinks.built_with_room(original, configurator, now.worker, **kwargs)


@around(SRT + "mem_cache.allocation_sizing.get_req_to_token_extra_context_len")
def places_beyond_context(original: Callable[[], int]) -> int:
    """Return how many slots a request's row has beyond the context length."""
    from sglang_adaptive.sglang_plugin import capacity

    return capacity.places_beyond_context(original)


# A scheduler calls it for SGLang's Rust server.
@around(SRT + "managers.utils.compute_num_reserved_tokens", process=(Process.LAUNCHER, Process.SCHEDULER))
def reserved_tokens(original: Callable[[], int]) -> int:
    """Return how many tokens of a request's context are reserved for a round: those of the launch steps."""
    from sglang_adaptive.sglang_plugin import capacity

    return capacity.reserved_tokens(original)


needs(
    Need(SRT + "mem_cache.memory_pool.ReqToTokenPool", attributes=("_alloc_size", "req_to_token")),
    Need(SRT + "mem_cache.kv_cache_configurator.KVCacheConfigurator", attributes=("is_draft_worker", "pool_page_size")),
    Need(
        SRT + "mem_cache.memory_pool.MHATokenToKVPool",
        attributes=(
            *("size", "k_buffer", "start_layer", "layer_num", "kv_cache_layout", "post_capture_active"),
            *("get_key_buffer", "get_value_buffer"),
        ),
    ),
    Need(SRT + "layers.rotary_embedding.base.RotaryEmbedding", attributes=("cos_sin_cache", "is_neox_style")),
    Need(
        EXECUTOR + "model_runner.ModelRunner",
        attributes=("use_mla_backend", "sliding_window_size", "kv_index_translator"),
    ),
    Need(SRT + "runtime_context.get_schedule"),
    Need(
        SRT + "model_executor.forward_batch_info.ForwardBatch",
        attributes=(
            *("req_pool_indices", "seq_lens", "seq_lens_cpu", "seq_lens_sum", "forward_mode"),
            *("extend_prefix_lens", "extend_prefix_lens_cpu"),
        ),
    ),
    Need(SRT + "arg_groups.overrides.max_speculative_num_draft_tokens", ("server_args",)),
    Need(SRT + "mem_cache.allocation_sizing.get_alloc_page_size"),
)
