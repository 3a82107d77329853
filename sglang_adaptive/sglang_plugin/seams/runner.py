"""SGLang's model runner: its CUDA graphs, and sizes that it derives from other draft tokens than rounds may have."""

from __future__ import annotations

from sglang_adaptive.sglang_plugin import repairs
from sglang_adaptive.sglang_plugin.hooks import EXECUTOR, SRT, Process, around, needs, to_stages
from sglang_adaptive.sglang_plugin.stage import Stage
from sglang_adaptive.sglang_plugin.stages import capacity

# -- CUDA graphs ---------------------------------------------------------------------------------------------------


_BACKENDS = EXECUTOR + "runner_backend."
_EXTEND_GRAPHS = SRT + "speculative.eagle_draft_extend_cuda_graph_runner.EAGLEDraftExtendCudaGraphRunner."
_LAYERS = SRT + "speculative.multi_layer_eagle_draft_extend_cuda_graph_runner."


to_stages(Stage.capture_one, _BACKENDS + "full_cuda_graph_backend.FullCudaGraphBackend.capture_one", "self forward_fn")
to_stages(
    Stage.capture_one,
    _BACKENDS + "breakable_cuda_graph_backend.BreakableCudaGraphBackend.capture_one",
    "self forward_fn",
)
to_stages(Stage.freeze_gc, EXECUTOR + "runner.base_cuda_graph_runner.freeze_gc", "enable_cudagraph_gc")
to_stages(Stage.capture, EXECUTOR + "runner.decode_cuda_graph_runner.DecodeCudaGraphRunner.capture", "self")
to_stages(Stage.capture, _LAYERS + "MultiLayerEagleMultiStepDraftExtendCudaGraphRunner._on_runners_created", "self")
to_stages(Stage.join_hidden_states, SRT + "layers.logits_processor.pack_aux_hidden_states", "aux_hidden_states")
to_stages(
    Stage.replay_extend, _EXTEND_GRAPHS + "execute", "self forward_batch select_index", process=Process.SCHEDULER_CUDA
)


# -- sizes ---------------------------------------------------------------------------------------------------------


around(
    "sglang.kernels.ops.mamba.triton_ops.ssu_dispatch.TritonSSUBackend.__call__",
    "self intermediate_states_buffer cache_steps",
)(repairs.run_mamba2)
for _size, _parameters in (
    (SRT + "mem_cache.kv_cache_configurator.KVCacheConfigurator._handle_max_mamba_cache", "self total_rest_memory"),
    (EXECUTOR + "pool_configurator.compute_swa_request_cap", "page_size window max_running_requests"),
    (SRT + "mem_cache.deepseek_v4_memory_pool.resolve_compress_state_ring_size", "compress_ratio"),
    (SRT + "mem_cache.deepseek_v4_memory_pool.get_swa_ring_size", "sliding_window is_speculative"),
    (SRT + "runtime_context.cutedsl_moe_max_num_tokens", ""),
):
    around(_size, _parameters)(repairs.at_the_widest)
around(SRT + "mem_cache.allocation_sizing.get_req_to_token_extra_context_len")(capacity.places_beyond_context)
around(EXECUTOR + "model_runner.ModelRunner.max_shared_logits_buffer_rows", "self")(capacity.rows_of_logits)
# A scheduler calls it for SGLang's Rust server.
around(SRT + "managers.utils.compute_num_reserved_tokens", process=(Process.LAUNCHER, Process.SCHEDULER))(
    capacity.reserved_tokens
)

needs(
    """
    runtime_context.get_exec
    runtime_context._ConfigBag.override
    model_executor.cuda_graph_config.with_phase: config phase
    model_executor.cuda_graph_config.PhaseConfig: bs backend
    model_executor.runner.DecodeCudaGraphRunner: capture_bs max_bs disable_padding _metadata_glue captured_req_width
        buffers buffer_registry seq_len_fill_value attn_backend backend
    model_executor.runner.DecodeCudaGraphRunner._pad_to_bucket
    model_executor.runner.DecodeCudaGraphRunner._publish_read_done: self in_graph
    model_executor.runner.DecodeCudaGraphRunner._resolve_shared_read_ends: self attn_backend forward_mode
    model_executor.runner.DecodeCudaGraphRunner._make_graph_key: self size
    model_executor.runner_backend.full_cuda_graph_backend.FullCudaGraphBackend: _cuda_graph_runner _graphs _tp_group
    model_executor.runner_backend.breakable_cuda_graph_backend.BreakableCudaGraphBackend: _cuda_graph_runner _graphs
        _tp_group _shared_output_buffer
    model_executor.runner.shape_key.ShapeKey: size
    model_executor.runner_backend.full_cuda_graph_backend.FullCudaGraphBackend.replay: self shape_key
        static_forward_batch
    utils.common.get_cuda_graph_batch_size_alignment
    utils.common.require_mlp_tp_gather
    utils.common.get_available_gpu_memory: device gpu_id
    utils.triton_load_watch.mark_serving_started
    utils.triton_load_watch._serving_started
    mem_cache.memory_pool.ReqToTokenPool: req_to_token
    mem_cache.memory_pool.MHATokenToKVPool: layer_num
    model_executor.model_runner.ModelRunner: use_mla_backend kv_index_translator
    runtime_context.get_schedule
    model_executor.forward_batch_info.ForwardBatch: req_pool_indices seq_lens seq_lens_cpu seq_lens_sum forward_mode
    arg_groups.overrides.max_speculative_num_draft_tokens: server_args
    mem_cache.allocation_sizing.get_alloc_page_size
    """
)
