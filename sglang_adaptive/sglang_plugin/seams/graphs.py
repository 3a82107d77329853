"""SGLang's CUDA graphs: their capture, and the replays that a round uses."""

from __future__ import annotations

from sglang_adaptive.sglang_plugin.hooks import EXECUTOR, SRT, Process, needs, to_stages
from sglang_adaptive.sglang_plugin.stage import Stage

_EXTEND_GRAPHS = SRT + "speculative.eagle_draft_extend_cuda_graph_runner.EAGLEDraftExtendCudaGraphRunner."
_LAYERS = SRT + "speculative.multi_layer_eagle_draft_extend_cuda_graph_runner."


to_stages(
    Stage.capture_one,
    EXECUTOR + "runner_backend.full_cuda_graph_backend.FullCudaGraphBackend.capture_one",
    *("self", "forward_fn"),
)
to_stages(Stage.freeze_gc, EXECUTOR + "runner.base_cuda_graph_runner.freeze_gc", "enable_cudagraph_gc")
to_stages(Stage.capture, EXECUTOR + "runner.decode_cuda_graph_runner.DecodeCudaGraphRunner.capture", "self")
to_stages(Stage.capture, _LAYERS + "MultiLayerEagleMultiStepDraftExtendCudaGraphRunner._on_runners_created", "self")
to_stages(Stage.join_hidden_states, SRT + "layers.logits_processor.pack_aux_hidden_states", "aux_hidden_states")
to_stages(
    Stage.replay_extend,
    _EXTEND_GRAPHS + "execute",
    *("self", "forward_batch", "select_index"),
    process=Process.SCHEDULER_CUDA,
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
    model_executor.runner_backend.full_cuda_graph_backend.FullCudaGraphBackend.replay: self shape_key
        static_forward_batch
    utils.common.get_cuda_graph_batch_size_alignment
    utils.common.require_mlp_tp_gather
    utils.common.get_available_gpu_memory: device gpu_id
    utils.triton_load_watch.mark_serving_started
    utils.triton_load_watch._serving_started
    """
)
