"""What is known of a server: how it drafts, and the facts that rule features out, as `features.FEATURES` says.

Trees, pipeline stages, HiSparse, LoRA and the KV canary need no fact: a server with one of them does not adapt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from sglang_adaptive.sglang_plugin import repairs


@dataclass(frozen=True, slots=True)
class Setup:
    """What facts are about: the launch, and those of SGLang's objects that a feature works on."""

    worker: Any = None
    draft: Any = None
    """SGLang's draft worker."""
    model: Any = None
    """A ModelRunner whose passes are changed."""
    attention: tuple[Any, ...] = ()
    """The attention backends of these passes; one may consist of several."""
    graphs: Any = None
    """The graph runner of these passes."""
    arguments: Any = None
    """Resolved ServerArgs, where no server runs; only facts that are `known_early` can be asked then."""

    @classmethod
    def of(cls, worker: Any) -> Setup:
        """Return the setup of SGLang's *worker*, whose draft may be no worker of its own."""
        return cls(worker, getattr(worker, "_draft_worker", None))

    def published(self, space: str) -> Any:
        """Return SGLang's configuration of *space*, such as "spec"."""
        from sglang.srt import runtime_context

        return self.arguments or getattr(runtime_context, f"get_{space}")()

    def backends(self) -> Iterator[Any]:
        """Yield each attention backend."""
        for one in self.attention:
            yield from getattr(one, "attn_backends", (one,))


@dataclass(frozen=True, slots=True)
class Fact:
    """Something that a server may have."""

    phrase: str
    """The fact as a reason, for logs, ``/server_info`` and docs/compatibility.md."""
    holds: Callable[[Setup], object]
    """Whether a server has it. A feature asks its facts in order, so a fact may rely on earlier ones."""
    known_early: bool = False
    """Whether the arguments of a launch tell."""


class AsIf:
    """The arguments of *server_args* with *values* replaced."""

    def __init__(self, server_args: Any, **values: Any) -> None:
        self._server_args = server_args
        declared = getattr(server_args, "_resolved_overrides", None) or ()
        # SGLang's views read this first; the last entry wins.
        self._resolved_overrides = [*declared, ("sglang-adaptive", values)]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._server_args, name)


def model_config(path: str | None) -> dict[str, Any]:
    """Return the configuration file of the model at *path*; empty where it is not on this machine."""
    from transformers import PretrainedConfig

    if path is None:
        return {}
    try:
        found: dict[str, Any] = PretrainedConfig.get_config_dict(path, local_files_only=True)[0]
    except OSError:
        return {}
    return found


def drafts_blocks(args: Any) -> bool:
    """Whether the algorithm of a command line or ServerArgs is DFLASH or DSPARK, whose block sets how much is drafted.

    Steps on the command line have no effect; SGLang sets them to 1. Only DFLASH adapts.
    """
    return (args.speculative_algorithm or "").upper() in ("DFLASH", "DSPARK")


def drafts_layers(spec: Any) -> bool:
    """Whether *spec*, SGLang's speculative arguments, run multi-layer EAGLE, whose layers set how much it drafts."""
    return spec.speculative_algorithm in ("EAGLE", "EAGLE3") and bool(spec.enable_multi_layer_eagle)


def is_eagle(worker: Any) -> bool:
    """Whether *worker* and its draft are SGLang's for one-layer EAGLE, whose drafts are chains when it adapts."""
    from sglang.srt.speculative.eagle_worker_v2 import EagleDraftWorker, EAGLEWorkerV2

    return type(worker) is EAGLEWorkerV2 and type(worker._draft_worker) is EagleDraftWorker


def is_standalone(worker: Any) -> bool:
    """Whether *worker* and its draft are those for STANDALONE, including our worker."""
    from sglang.srt.speculative.standalone_worker_v2 import StandaloneDraftWorker, StandaloneWorkerV2

    return isinstance(worker, StandaloneWorkerV2) and type(worker._draft_worker) is StandaloneDraftWorker


def _drafts_otherwise(setup: Setup) -> bool:
    if setup.worker is not None:
        return not (is_eagle(setup.worker) or is_standalone(setup.worker))
    spec = setup.published("spec")
    return spec.speculative_algorithm not in ("EAGLE", "EAGLE3", "STANDALONE") or drafts_layers(spec)


def _keeps_more(setup: Setup) -> bool:
    from sglang.srt.mem_cache.memory_pool import ReqToTokenPool

    return type(setup.worker._target_worker.model_runner.req_to_token_pool) is not ReqToTokenPool


def _has_several_layers(setup: Setup) -> bool:
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool

    pool = setup.draft.draft_runner.token_to_kv_pool
    return type(pool) is not MHATokenToKVPool or pool.layer_num != 1 or setup.published("parallel").attn_cp_size > 1


def _is_set(variable: str) -> bool:
    from sglang.srt.environ import envs

    return bool(getattr(envs, variable).get())


def _is_simulated(setup: Setup) -> bool:
    from sglang.srt.environ import envs

    return bool(envs.SGLANG_SIMULATE_ACC_LEN.get() > 0)  # as SGLang's verify asks


def _accepts_more(setup: Setup) -> bool:
    spec = setup.published("spec")
    return bool(min(spec.speculative_accept_threshold_single, spec.speculative_accept_threshold_acc) < 1)


def _attention_dp(setup: Setup) -> bool:
    parallel = setup.published("parallel")  # a rank that joins an elastic server has a group of one
    return bool(parallel.attn_dp_size > 1 or getattr(parallel, "attn_dp_enabled", False))


def is_plain_fa3(backend: Any) -> bool:
    """Whether *backend* needs no more than lengths and page tables as fa3 reads them of chains in one pool."""
    from sglang.srt.mem_cache.kv_loc_plan import IdSpaceKind

    if type(backend).__name__ != "FlashAttentionBackend" or backend.needs_cpu_seq_lens:
        return False
    translator = backend.kv_index_translator
    virtual = translator.reads_are_translated or translator.space(IdSpaceKind.FULL).write is not None
    windows = backend.use_sliding_window_kv_pool or backend.local_attn_builder is not None
    return not (virtual or windows or backend.is_encoder_decoder or backend.topk > 1)


def is_plain_flashinfer(backend: Any) -> bool:
    """Whether a replay on *backend* needs no more than the layout of whole requests in one pool."""
    if type(backend).__name__ != "FlashInferAttnBackend":
        return False
    translator = backend.kv_index_translator
    return (
        backend.prefill_backend == backend.decode_backend == "fa2"
        and backend.dispatch_reason is None  # neither a window nor an encoder
        and not backend.use_sliding_window_kv_pool
        and not (backend.enable_deterministic or backend.disable_cuda_graph_kv_split)
        and not (backend.prefill_uses_dequant_workspace or backend.decode_uses_dequant_workspace)
        and not backend.is_dllm_model
        and not (translator.is_translating or translator.reads_are_translated)
    )


def _alltoall(_: Setup) -> bool:
    from sglang.srt.layers.moe.utils import get_moe_a2a_backend

    return not get_moe_a2a_backend().is_none()


def _is_observed(setup: Setup) -> bool:
    from sglang.srt.eplb.expert_distribution import get_global_expert_distribution_recorder

    features, recorder = setup.published("exec").features, get_global_expert_distribution_recorder()
    collected = features.enable_return_routed_experts or features.enable_return_indexer_topk
    debugs = ("SGLANG_LOG_DECODE_GRAPH_KEY", "SGLANG_ENABLE_ASYNC_ASSERT", "SGLANG_ENABLE_NAN_LOGITS_CHECK")
    return "Noop" not in type(recorder).__name__ or collected or any(map(_is_set, debugs))


def _is_other_model(setup: Setup) -> bool:
    from sglang.srt.configs.hybrid_arch import mambaish_config

    runner = setup.model
    config, around = runner.model_config, ("watermark_state", "eplb_manager", "device_timer", "msprobe_debugger")
    return (
        any(getattr(runner, name, None) is not None for name in around)
        or config.is_multimodal
        or config.model_is_mrope
        or mambaish_config(config) is not None
        or runner.enable_elastic_ep
        or runner.ngram_embedding_manager.enabled
        or hasattr(runner.model, "prepare_for_forward")
    )


VERIFY_INPUTS = ("input_ids", "positions", "out_cache_loc", "req_pool_indices", "seq_lens")
"""Buffers of a verify graph that a round fills in."""
_UNUSED = ("seq_lens_cpu", "mrope_positions", "global_num_tokens_gpu", "global_num_tokens_for_logprob_gpu")
"""Buffers that SGLang does not touch when lengths are not on the host and attention DP is off."""


def _are_other_graphs(setup: Setup) -> bool:
    graphs = setup.graphs
    if graphs is None:
        return False
    takes_more = _TAKES_MORE.get(type(graphs).__name__)
    return (
        takes_more is None
        or type(graphs.backend).__name__ != "FullCudaGraphBackend"
        or graphs.require_mlp_sync
        or graphs.disable_padding
        or graphs.attention_graph_variants is not None
        or graphs.is_dllm
        or getattr(graphs, "_metadata_glue", None) is not None
        or takes_more(graphs)
    )


def _verify_takes_more(graphs: Any) -> bool:
    registry = graphs.buffer_registry
    filled = {name for name in registry.slot_names() if registry.get_slot(name).buffer is not None}
    return bool(filled - {*VERIFY_INPUTS, *_UNUSED} or getattr(graphs, "_early_verify_metadata", None))


def _eagle_takes_more(graphs: Any) -> bool:
    read = ("rids_int", "draft_probs", "dsa_seed_topk", "dsa_seed_topk_capture", "mamba_track_indices")
    return graphs.buffers.hidden_states is None or any(getattr(graphs.buffers, name, None) is not None for name in read)


def _draft_takes_more(graphs: Any) -> bool:
    """Whether its passes have several page tables, or do not each read one token more than the previous one."""
    from sglang.srt.model_executor.forward_batch_info import ForwardMode
    from sglang.srt.speculative.eagle_info import EagleDraftInput

    if _eagle_takes_more(graphs) or graphs.captured_req_width != 1:
        return True
    backends = graphs.draft_attn_backend.attn_backends
    reads = [one._spec_read_seq_len_delta(ForwardMode.DECODE, EagleDraftInput()) for one in backends]
    tables = {one.decode_cuda_graph_metadata[graphs.capture_bs[0]].page_table.data_ptr() for one in backends}
    return reads != list(range(1, graphs.speculative_num_steps)) or len(tables) != 1


def _extend_takes_more(graphs: Any) -> bool:
    return _eagle_takes_more(graphs) or not graphs.draft_extend_attn_backend.draft_extend_metadata_captured_in_graph()


_TAKES_MORE: dict[str, Callable[[Any], bool]] = {
    "DecodeCudaGraphRunner": _verify_takes_more,
    "EAGLEDraftCudaGraphRunner": _draft_takes_more,
    "EAGLEDraftExtendCudaGraphRunner": _extend_takes_more,
}
"""By class of graph runner, whether its graphs take more than a batch's tokens, lengths and slots."""


def _reads_a_mask(setup: Setup) -> bool:
    mask = setup.attention[0].verify_mask
    return mask is None or mask.is_read


# fmt: off
# Drafts and acceptance
OTHER_DRAFT = Fact("a draft other than EAGLE's, an MTP layer's or STANDALONE's", _drafts_otherwise, True)
DFLASH = Fact(
    "DFLASH accepts drafts in its own function", lambda s: s.published("spec").speculative_algorithm == "DFLASH", True)
REJECTION_SAMPLING = Fact(
    "--speculative-use-rejection-sampling accepts by the draft's probabilities",
    lambda s: s.published("spec").speculative_use_rejection_sampling, True)
THRESHOLDS = Fact(
    "--speculative-accept-threshold-single or -acc below 1 accepts drafts other than the target's", _accepts_more, True)
SIMULATED = Fact("SGLANG_SIMULATE_ACC_LEN makes up what is accepted", _is_simulated, True)
SKIPPED_EXTEND = Fact(
    "SGLANG_SPEC_SKIP_ZERO_STEP_DRAFT_EXTEND skips the draft's extend",
    lambda _: _is_set("SGLANG_SPEC_SKIP_ZERO_STEP_DRAFT_EXTEND"), True)
SPARSE_EXTEND = Fact(
    "the draft's extend also selects for sparse attention", lambda s: s.draft.seed_dsa_topk_from_draft_extend)
# Scheduling and parallelism
MIXED_CHUNK = Fact(
    "--enable-mixed-chunk extends running requests together with prompts",
    lambda s: s.published("schedule").enable_mixed_chunk, True)
STREAMING_SESSION = Fact(
    "--enable-streaming-session keeps a request's KV for its next turn",
    lambda s: s.published("serving").enable_streaming_session, True)
DISAGGREGATION = Fact(
    "prefill-decode disaggregation", lambda s: s.published("disagg").disaggregation_mode != "null", True)
ATTENTION_DP = Fact("attention DP", _attention_dp, True)
DECODE_CONTEXT_PARALLEL = Fact("decode context parallelism", lambda s: s.published("parallel").attn_dcp_size > 1)
# Models and their memory
OTHER_POOL = Fact("SGLang keeps more of a request than its KV, as in hybrid (Mamba) models", _keeps_more)
TARGET_MLA = Fact(
    "the target has latent attention (MLA)", lambda s: s.worker._target_worker.model_runner.use_mla_backend)
DRAFT_MLA = Fact("the draft has latent attention (MLA)", lambda s: s.draft.draft_runner.use_mla_backend)
RINGS = Fact(
    "DeepSeek-V4 keeps a request's latest tokens in rings",
    lambda s: repairs.most_steps(s.worker._target_worker.model_runner.model_config.hf_config.to_dict()) is not None)
SEVERAL_LAYERS = Fact("a draft of several layers, or whose KV pool is not one rank's plain one", _has_several_layers)
MULTIMODAL_DRAFT = Fact("positions are multimodal", lambda s: s.draft.draft_runner.model_config.model_is_mrope)
# Passes without SGLang's preparation
OTHER_PREPARATION = Fact(
    "SGLang prepares passes on a stream of their own", lambda s: (s.worker or s.draft).plan_stream is not None)
TWO_BATCHES = Fact("two-batch overlap", lambda s: s.published("exec").overlap.enable_two_batch_overlap)
ALLTOALL = Fact("experts are reached by an all-to-all", _alltoall)
OBSERVED = Fact("SGLang observes passes: experts, an indexer's choices, debugging", _is_observed)
OTHER_MODEL = Fact("the model is multimodal or hybrid, or SGLang acts around its passes", _is_other_model)
NOT_FA3 = Fact(
    "attention other than fa3's over chains in one KV pool, without a window",
    lambda s: not all(map(is_plain_fa3, s.backends())))
NOT_FLASHINFER = Fact(
    "attention other than FlashInfer's fa2 kernels over one KV pool, without a window",
    lambda s: not all(map(is_plain_flashinfer, s.backends())))
READS_MASK = Fact("the verify pass reads a mask", _reads_a_mask)
OTHER_GRAPHS = Fact("CUDA graphs take more than tokens and lengths", _are_other_graphs)
# fmt: on
