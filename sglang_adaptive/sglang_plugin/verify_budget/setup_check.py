"""Whether a verify budget is asked for, and whether the setup allows one."""

from __future__ import annotations

import os
from typing import Any

FORCE = "SGLANG_ADAPTIVE_VERIFY_BUDGET"
"""Environment variable with the mean number of drafts to verify for a request, for tests."""

PACKED_BACKENDS = frozenset({"TorchRefBackend"})  # the CPU engine's
"""Classes of attention backends that have been shown to verify packed tokens as they verify a rectangle."""


def why_rectangles(worker: Any) -> str | None:
    """Return why all requests of a batch have to verify equally many drafts; None where they need not."""
    forced = os.environ.get(FORCE, "")
    if not forced.isdecimal() or int(forced) < 1:
        return f"{FORCE}={forced!r} is not a whole number from 1 on"
    return _of_the_worker(worker) or _of_the_target(worker.target_worker.model_runner) or _of_the_server()


def _of_the_worker(worker: Any) -> str | None:
    from sglang.srt.speculative.eagle_worker_v2 import EagleDraftWorker, EAGLEWorkerV2

    draft = worker._draft_worker
    if (type(worker), type(draft)) != (EAGLEWorkerV2, EagleDraftWorker):
        return f"{type(worker).__name__} packs no drafts"
    if worker.topk != 1:
        return "drafts are trees, and what is kept of one need not be a prefix"
    return None


def _of_the_target(runner: Any) -> str | None:
    from sglang.srt.mem_cache.memory_pool import ReqToTokenPool

    backend = type(runner.attn_backend).__name__
    if backend not in PACKED_BACKENDS:
        return f"{backend} has not been shown to verify packed drafts"
    if runner.decode_cuda_graph_runner is not None:
        return "graphs of a verify pass are captured for rectangles"
    if type(runner.req_to_token_pool) is not ReqToTokenPool:
        return f"a {type(runner.req_to_token_pool).__name__} keeps a state for each token of a rectangle"
    if runner.model_config.model_is_mrope:
        return "multimodal positions are made for rectangles"
    if runner.lora_manager is not None:
        return "LoRA adapters are applied to rectangles"
    if runner.watermark_state is not None:
        return "watermarks read the tokens of a rectangle"
    return None


def _of_the_server() -> str | None:
    from sglang.srt.environ import envs
    from sglang.srt.runtime_context import get_memory, get_parallel, get_spec

    parallel = get_parallel()
    reasons = {
        "rejection sampling reads every draft of a chain": get_spec().speculative_use_rejection_sampling,
        "SGLANG_SIMULATE_ACC_LEN accepts drafts unseen": envs.SGLANG_SIMULATE_ACC_LEN.get() > 0,
        "--enable-hisparse moves KV between rounds": get_memory().enable_hisparse,
        "pipeline stages relay drafts": parallel.pp_size > 1,
        "several ranks have not been shown to rank drafts alike": parallel.tp_size > 1 or parallel.attn_dp_size > 1,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)
