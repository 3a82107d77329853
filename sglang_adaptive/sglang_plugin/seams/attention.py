"""SGLang's attention backends, and the kernels that a round runs beside the models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from sglang_adaptive.sglang_plugin.contract import Need
from sglang_adaptive.sglang_plugin.hooks import EXECUTOR, FA3, SRT, Process, around, event, needs

if TYPE_CHECKING:
    from sglang_adaptive.sglang_plugin.round import Round

_TRITON = SRT + "layers.attention.triton_backend.TritonAttnBackend."
_FLASHINFER = SRT + "layers.attention.flashinfer_backend.FlashInferAttnBackend."
_DECODING = (_TRITON, _FLASHINFER)
"""Backends that can run a zero-step round with the plain decode kernel."""

_FLASHINFER_DRAFT = SRT + "layers.attention.flashinfer_backend.FlashInferMultiStepDraftBackend."


@around(EXECUTOR + "model_runner.ModelRunner._get_attention_backend", "self", "init_new_workspace")
def build_backend(original: Callable[..., Any], runner: Any, *args: Any, **kwargs: Any) -> Any:
    """Build an attention backend that is as complete as the one built at start-up."""
    from sglang_adaptive.sglang_plugin import repairs

    return repairs.finished_backend(original(runner, *args, **kwargs), runner)


@around(
    SRT + "layers.attention.base_attn_backend.AttentionBackend.update_verify_buffers_to_fill_after_draft",
    *("self", "spec_info", "cuda_graph_bs"),
    process=Process.SCHEDULER_PLAN_STREAM,
)
def correct_plan(original: Callable[..., None], backend: Any, spec_info: Any, cuda_graph_bs: int | None) -> None:
    """Correct what SGLang's plan stream prepared for a verify pass, now that the drafts are known."""
    from sglang_adaptive.sglang_plugin import repairs

    repairs.correct_plan_stream(original, backend, spec_info, cuda_graph_bs)


@event("sglang.kernels.ops.memory.small_copy.try_small_copy", "dsts", "srcs")
def small_copy(now: Round, original: Callable[..., bool], dsts: Sequence[Any], srcs: Sequence[Any]) -> bool:
    """Run several small copies in one kernel launch."""
    from sglang_adaptive.sglang_plugin.fast_path import launches

    return original(dsts, launches.aligned(srcs))


def _init_metadata(
    now: Round, original: Callable[..., None], backend: Any, forward_batch: Any, *args: Any, **kw: Any
) -> None:
    """Build the metadata of a pass."""
    original(backend, now.decode_kernel.seen(backend, forward_batch), *args, **kw)


def _triton_metadata(
    now: Round, original: Callable[..., None], backend: Any, forward_batch: Any, *args: Any, **kw: Any
) -> None:
    """Build the metadata of a pass on SGLang's Triton backend."""
    now.chain_kernel.serve(backend, forward_batch)
    _init_metadata(now, original, backend, forward_batch, *args, **kw)


def _plan(now: Round, original: Callable[..., None], backend: Any, forward_batch: Any, *args: Any, **kw: Any) -> None:
    """Plan a FlashInfer pass that runs without a graph."""
    from sglang_adaptive.sglang_plugin.fast_path.flashinfer import with_lengths

    _init_metadata(now, original, backend, with_lengths(forward_batch), *args, **kw)


def _plan_replay(
    now: Round, original: Callable[..., None], backend: Any, forward_batch: Any, in_capture: bool = False
) -> None:
    """Plan a FlashInfer pass that is captured or replayed."""
    decodes = now.decode_kernel.runs(backend, forward_batch)
    if in_capture or not now.device_plans.planned(backend, forward_batch, decodes):
        _plan(now, original, backend, forward_batch, in_capture)
        if in_capture and not decodes:
            now.device_plans.captured(backend, forward_batch)


def _forward_extend(
    now: Round, original: Callable[..., Any], backend: Any, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any,
    *args: Any, **kwargs: Any,
) -> Any:  # fmt: skip
    """Run attention in an extend or verify pass."""
    if now.decode_kernel.runs(backend, forward_batch):
        return backend.forward_decode(q, k, v, layer, forward_batch, *args, **kwargs)
    return original(backend, q, k, v, layer, forward_batch, *args, **kwargs)


def _plan_draft(
    now: Round, original: Callable[..., None], backend: Any, forward_batch: Any, *args: Any, **kwargs: Any
) -> None:
    """Plan a FlashInfer draft that runs without a graph."""
    from sglang_adaptive.sglang_plugin.fast_path.flashinfer import with_lengths

    original(backend, with_lengths(forward_batch), *args, **kwargs)


def _plan_draft_replay(
    now: Round, original: Callable[..., None], backend: Any, forward_batch: Any, in_capture: bool = False
) -> None:
    """Plan all passes of a FlashInfer draft that is captured or replayed."""
    if in_capture or not now.device_plans.draft_planned(backend, forward_batch):
        _plan_draft(now, original, backend, forward_batch, in_capture)


_EAGER, _GRAPH = "init_forward_metadata", "init_forward_metadata_out_graph"
_MADE: dict[str, Callable[..., None]] = {
    _TRITON + _EAGER: _triton_metadata,
    _TRITON + _GRAPH: _triton_metadata,
    _FLASHINFER + _EAGER: _plan,
    _FLASHINFER + _GRAPH: _plan_replay,
    _FLASHINFER_DRAFT + _EAGER: _plan_draft,
    _FLASHINFER_DRAFT + _GRAPH: _plan_draft_replay,
}
for _maker, _made in _MADE.items():
    event(_maker, "self", "forward_batch", process=Process.SCHEDULER_CUDA)(_made)


for _backend in _DECODING:
    event(
        _backend + "forward_extend",
        *("self", "q", "k", "v", "layer", "forward_batch"),
        process=Process.SCHEDULER_CUDA,
    )(_forward_extend)


@event(
    FA3 + "FlashAttentionBackend.forward_extend",
    *("self", "q", "k", "v", "layer", "forward_batch"),
    process=Process.SCHEDULER_CUDA,
)
def fa3_extend(
    now: Round, original: Callable[..., Any], backend: Any, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any,
    *args: Any, **kwargs: Any,
) -> Any:  # fmt: skip
    """Run attention with fa3 in an extend or verify pass."""
    fa3 = now.fa3
    q = fa3.queries.in_place(backend, q, forward_batch)
    with fa3.verify_schedule.of(backend, layer, forward_batch):
        return original(backend, q, k, v, layer, forward_batch, *args, **kwargs)


@event(
    FA3 + "FlashAttentionBackend.forward_decode",
    *("self", "q", "k", "v", "layer", "forward_batch"),
    process=Process.SCHEDULER_CUDA,
)
def fa3_decode(
    now: Round, original: Callable[..., Any], backend: Any, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any,
    *args: Any, **kwargs: Any,
) -> Any:  # fmt: skip
    """Run attention with fa3 in a decode pass."""
    q = now.fa3.queries.in_place(backend, q, forward_batch)
    return original(backend, q, k, v, layer, forward_batch, *args, **kwargs)


@event(FA3 + "flash_attn_with_kvcache", "scheduler_metadata", process=Process.SCHEDULER_CUDA)
def fa3_kernel(now: Round, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call fa3's kernel."""
    return original(*args, **now.fa3.verify_schedule.arguments(kwargs))


@event(
    FA3 + "FlashAttentionBackend.init_forward_metadata_out_graph",
    *("self", "forward_batch", "in_capture"),
    process=Process.SCHEDULER_CUDA,
)
def fa3_metadata(
    now: Round, original: Callable[..., None], backend: Any, forward_batch: Any, *args: Any, **kwargs: Any
) -> None:
    """Build fa3's metadata before a replay."""
    if not now.fa3.extend_metadata.is_made(backend, forward_batch):
        original(backend, forward_batch, *args, **kwargs)


@event(
    FA3 + "normal_decode_set_metadata",
    *("cache_seqlens_int32", "cu_seqlens_k", "page_table", "req_to_token", "req_pool_indices", "max_seq_pages"),
    *("seq_lens", "seq_len_delta", "page_size"),
    process=Process.SCHEDULER_CUDA,
)
def fa3_decode_metadata(now: Round, original: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    """Fill in fa3's metadata for a decode, draft or verify pass."""
    if not now.fa3.length_kernel.of_a_decode(*args, **kwargs):
        original(*args, **kwargs)


@event(
    FA3 + "draft_extend_set_metadata",
    *("cache_seqlens_int32", "cu_seqlens_k", "cu_seqlens_q", "page_table", "req_to_token", "req_pool_indices"),
    *("seq_lens", "extend_seq_lens", "page_size", "full_to_swa_index_mapping"),
    process=Process.SCHEDULER_CUDA,
)
def fa3_extend_metadata(now: Round, original: Callable[..., None], **kwargs: Any) -> None:
    """Fill in fa3's metadata inside the graph of the draft extend."""
    if not now.fa3.length_kernel.of_an_extend(**kwargs):
        original(**kwargs)


needs(
    Need(SRT + "mem_cache.kv_index_translator.KVIndexTranslator.bind_and_verify_backends", ("backends",)),
    Need(
        SRT + "layers.attention.base_attn_backend.AttentionBackend",
        attributes=("prefill_attention_backend_str", "decode_attention_backend_str"),
    ),
    Need(
        SRT + "mem_cache.kv_index_translator.KVIndexTranslator",
        attributes=("is_translating", "reads_are_translated", "req_to_token"),
    ),
    Need(
        _TRITON.rstrip("."),
        attributes=(
            *("use_verify_shared_kv", "verify_shared_kv_fwd", "use_verify_splitkv", "topk", "is_draft_runner"),
            *("use_mla", "dcp_size", "enable_deterministic", "device_core_count"),
        ),
    ),
    Need(
        _FLASHINFER.rstrip("."),
        attributes=(
            *("prefill_backend", "decode_backend", "dispatch_reason", "use_sliding_window_kv_pool", "is_dllm_model"),
            *("prefill_uses_dequant_workspace", "decode_uses_dequant_workspace", "enable_deterministic"),
            *("disable_cuda_graph_kv_split", "indices_updater_decode", "kv_index_translator"),
            *("decode_cuda_graph_metadata", "prefill_cuda_graph_metadata", "draft_extend_cuda_graph_metadata"),
        ),
    ),
    Need(_FLASHINFER_DRAFT.rstrip("."), attributes=("topk", "draft_window_size", "attn_backends")),
    Need(SRT + "environ.envs.SGLANG_ENABLE_OVERLAP_PLAN_STREAM"),
    *(Need(backend + "forward_decode", ("self", "q", "k", "v", "layer", "forward_batch")) for backend in _DECODING),
    Need("sglang.kernels.ops.memory.common.write_req_to_token_pool_triton"),
    Need(SRT + "mem_cache.allocation.assign_req_to_token_pool"),
    Need(FA3 + "FlashAttentionBackend.draft_extend_metadata_captured_in_graph", ("self",), on_cuda=True),
    Need(FA3 + "FlashAttentionBackend._spec_read_seq_len_delta", ("self", "forward_mode", "spec_info"), on_cuda=True),
    Need(
        FA3 + "FlashAttentionBackend",
        attributes=(
            *("_get_scheduler_metadata", "_disable_scheduler_metadata_precompute", "_kv_shard_pool"),
            *("fa_impl_ver", "use_mla", "topk", "attn_cp_size", "local_attn_builder", "is_encoder_decoder"),
            *("needs_cpu_seq_lens", "use_sliding_window_kv_pool", "kv_index_translator", "max_num_pages"),
            *("req_to_token", "page_size", "target_verify_metadata", "decode_cuda_graph_metadata"),
        ),
        on_cuda=True,
    ),
    Need(
        FA3 + "FlashAttentionMetadata",
        attributes=("cache_seqlens_int32", "cu_seqlens_k", "cu_seqlens_q", "max_seq_len_q", "page_table"),
        on_cuda=True,
    ),
)
