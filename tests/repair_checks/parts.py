"""SGLang's real classes for the checks, without models, KV pools and sockets."""

from __future__ import annotations

import json
import logging
import tempfile
from array import array
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import fields
from inspect import signature
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

LADDER = {"1": {"candidate_steps": [1, 3]}, "warmup_batches": 0, "update_interval": 1, "ema_alpha": 1}
"""Decides after every round, from that round alone."""
THREE_TIERS = {"1": {"candidate_steps": [1, 3, 7]}}


@contextmanager
def published(**resolved: Any) -> Iterator[None]:
    """Publish a configuration like a scheduler; *resolved* are ServerArgs fields."""
    from sglang.srt.runtime_context import get_context

    adaptive = {"speculative_algorithm": "EAGLE3", "speculative_adaptive": True, "speculative_eagle_topk": 1}
    launch = {"speculative_num_steps": 3, "speculative_num_draft_tokens": 4}
    with get_context().override_server_args(**{**adaptive, **launch, **resolved}):
        yield


def launched(steps: int, **resolved: Any) -> AbstractContextManager[None]:
    """Publish the configuration of a launch with *steps* without a GPU; *resolved* are more ServerArgs fields."""
    width = {"speculative_num_steps": steps, "speculative_num_draft_tokens": steps + 1}
    return published(device="cpu", **width, **resolved)


@contextmanager
def written(config: Any) -> Iterator[str]:
    """Yield the path of a file with *config*, a JSON value."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "adaptive.json"
        path.write_text(json.dumps(config))
        yield str(path)


def adaptive_worker(config: Any = LADDER, launch_steps: int = 3) -> Any:
    """Return SGLang's EAGLE worker with its controller and policy; backends, graphs and models are None."""
    from sglang.srt.speculative.adaptive_runtime_state import AdaptiveController, SpecRuntimeState
    from sglang.srt.speculative.adaptive_spec_params import AdaptiveSpeculativeParams
    from sglang.srt.speculative.eagle_worker_v2 import EAGLEWorkerV2

    worker = object.__new__(EAGLEWorkerV2)
    worker.speculative_num_steps, worker.speculative_num_draft_tokens = launch_steps, launch_steps + 1
    worker._draft_worker = SimpleNamespace(draft_runner=SimpleNamespace(), _rebuild_topk1_chain_buffers=lambda: None)
    worker._target_worker = SimpleNamespace(model_runner=SimpleNamespace())
    with written(config) as path:
        policy = AdaptiveSpeculativeParams(launch_steps, path)
    worker.adaptive_controller = AdaptiveController(worker, policy)
    for steps in policy.candidate_steps:
        worker.adaptive_controller.register(SpecRuntimeState(steps, steps + 1, None, None, None, None, None, None))
    worker.adaptive_controller.init_states()
    return worker


def buildable(worker: Any) -> Any:
    """Give *worker* everything that building a tier needs except graphs; nothing in it computes."""
    from sglang.srt.speculative.spec_utils import draft_tp_context

    draft, target = worker._draft_worker, worker._target_worker
    for name in ("draft_attn_backend", "draft_extend_attn_backend", "cuda_graph_runner"):
        setattr(draft, name, None)
    draft.cuda_graph_runner_for_draft_extend = None
    draft.speculative_num_steps, draft.speculative_num_draft_tokens = 3, 4
    draft.draft_runner.draft_attn_backend = draft.draft_runner.attn_backend = None
    draft.init_attention_backend = draft._capture_cuda_graphs = lambda: None
    if "owns_attention" in signature(draft_tp_context).parameters:
        draft.draft_owns_attention = False  # SGLang 0.5.22
    else:
        draft.parallel_layout = SimpleNamespace(tp_group=None)
    target.model_runner.init_new_workspace = False
    target.model_runner._get_attention_backend = lambda init_new_workspace: "backend"
    worker.device, worker.gpu_id = "cpu", 0
    worker._additional_graph_memory_usage, worker._additional_graph_time_usage = {}, {}
    return worker


def result_processor(worker: Any) -> Any:
    """Return the scheduler's result processor, bound to *worker*."""
    from sglang.srt.managers.scheduler_components.batch_result_processor import SchedulerBatchResultProcessor

    unused = {field.name: None for field in fields(SchedulerBatchResultProcessor)}
    return SchedulerBatchResultProcessor(**{**unused, "model_worker": worker, "metrics_reporter": mock.Mock()})


def verify(processor: Any, steps: int, correct: int) -> None:
    """Let the scheduler see one round of one request: *steps* drafted, *correct* of them accepted."""
    import torch
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.managers.utils import GenerationBatchResult
    from sglang.srt.sampling.sampling_params import SamplingParams

    req = Req("rid", "ab", array("q", [1, 2]), SamplingParams(max_new_tokens=64))
    req.kv = SimpleNamespace(kv_committed_len=2)
    result = GenerationBatchResult(
        next_token_ids=torch.zeros(steps + 1, dtype=torch.int64),
        accept_lens=torch.tensor([correct + 1]),
        speculative_num_draft_tokens=steps + 1,
    )
    processor._resolve_spec_v2_tokens(result, SimpleNamespace(reqs=[req], has_grammar=False))


@contextmanager
def logged() -> Iterator[list[str]]:
    """Collect SGLang's log lines from INFO up."""
    lines: list[str] = []
    handler = logging.Handler(logging.INFO)
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("sglang")
    before = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


@contextmanager
def rank_zero() -> Iterator[None]:
    """Set up a process group of one, which SGLang's rank-0 log lines need."""
    import torch.distributed as dist
    from sglang.srt.runtime_context import get_parallel

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with get_parallel().override(tp_rank=0):
            yield
    finally:
        dist.destroy_process_group()
