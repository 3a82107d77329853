"""SGLang's CUDA graphs: their capture, and the replays that a round uses."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from sglang_adaptive.sglang_plugin.contract import Need
from sglang_adaptive.sglang_plugin.hooks import EXECUTOR, SRT, Process, event, needs

if TYPE_CHECKING:
    from sglang_adaptive.sglang_plugin.round import Round

_EXTEND_GRAPHS = SRT + "speculative.eagle_draft_extend_cuda_graph_runner.EAGLEDraftExtendCudaGraphRunner."
_LAYERS = SRT + "speculative.multi_layer_eagle_draft_extend_cuda_graph_runner."


@event(EXECUTOR + "runner_backend.full_cuda_graph_backend.FullCudaGraphBackend.capture_one", "self", "forward_fn")
def capture_one(now: Round, original: Callable[..., None], backend: Any, *args: Any, **kwargs: Any) -> None:
    """Capture one CUDA graph."""
    now.captures.capture(original, backend, *args, **kwargs)


def _freeze_gc(
    now: Round, original: Callable[[bool], AbstractContextManager[None]], enable: bool
) -> AbstractContextManager[None]:
    """Collect garbage before and after the capture of one kind of graph."""
    return now.captures.freeze_gc(original, enable)


for _phase in ("prefill", "decode"):
    event(EXECUTOR + f"runner.{_phase}_cuda_graph_runner.freeze_gc", "enable_cudagraph_gc")(_freeze_gc)


@event(EXECUTOR + "runner.decode_cuda_graph_runner.DecodeCudaGraphRunner.capture", "self")
def capture(now: Round, original: Callable[..., None], runner: Any, *args: Any, **kwargs: Any) -> None:
    """Capture all graphs of one kind."""
    now.captures.share_page_tables(runner)
    original(runner, *args, **kwargs)


@event(_LAYERS + "MultiLayerEagleMultiStepDraftExtendCudaGraphRunner._on_runners_created", "self")
def capture_layers(now: Round, original: Callable[..., None], extend: Any, *args: Any, **kwargs: Any) -> None:
    """Capture the graphs of a multi-layer draft extend."""
    for runner in filter(None, extend.runners):
        now.captures.share_page_tables(runner)
    original(extend, *args, **kwargs)


@event(SRT + "layers.logits_processor.pack_aux_hidden_states", "aux_hidden_states")
def join_hidden_states(now: Round, original: Callable[[Any], Any], hidden_states: Any) -> Any:
    """Join the hidden states of several layers at the end of a verify pass."""
    return now.captures.join_hidden_states(original, hidden_states)


@event(_EXTEND_GRAPHS + "execute", "self", "forward_batch", "select_index", process=Process.SCHEDULER_CUDA)
def replay_extend(now: Round, original: Callable[..., Any], graphs: Any, *args: Any, **kwargs: Any) -> Any:
    """Replay the graph of a draft extend."""
    with now.fa3.extend_metadata.replaying(graphs.draft_extend_attn_backend):
        return original(graphs, *args, **kwargs)


needs(
    Need(SRT + "runtime_context.get_exec"),
    Need(SRT + "runtime_context._ConfigBag.override"),
    Need(EXECUTOR + "cuda_graph_config.with_phase", ("config", "phase")),
    Need(EXECUTOR + "cuda_graph_config.PhaseConfig", attributes=("bs", "backend")),
    Need(
        EXECUTOR + "runner.DecodeCudaGraphRunner",
        attributes=(
            *("capture_bs", "max_bs", "disable_padding", "_metadata_glue", "captured_req_width", "buffers"),
            *("buffer_registry", "seq_len_fill_value", "attn_backend", "backend"),
        ),
    ),
    Need(EXECUTOR + "runner.DecodeCudaGraphRunner._pad_to_bucket"),
    Need(EXECUTOR + "runner.DecodeCudaGraphRunner._publish_read_done", ("self", "in_graph")),
    Need(EXECUTOR + "runner.DecodeCudaGraphRunner._resolve_shared_read_ends", ("self", "attn_backend", "forward_mode")),
    Need(EXECUTOR + "runner.DecodeCudaGraphRunner._make_graph_key", ("self", "size")),
    Need(
        EXECUTOR + "runner_backend.full_cuda_graph_backend.FullCudaGraphBackend.replay",
        ("self", "shape_key", "static_forward_batch"),
    ),
    Need(SRT + "utils.common.get_cuda_graph_batch_size_alignment"),
    Need(SRT + "utils.common.require_mlp_tp_gather"),
    Need(SRT + "utils.common.get_available_gpu_memory", ("device", "gpu_id")),
    Need(SRT + "utils.triton_load_watch.mark_serving_started"),
    Need(SRT + "utils.triton_load_watch._serving_started"),
)
