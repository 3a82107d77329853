"""SGLang's own switching and feedback code, driven without a model; runs where SGLang is imported already.

Each function prints one JSON object. `who` is "released" for SGLang 0.5.23 as released, "ours" for the same code with
the package's parts in the places where the plugin puts them.
"""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import torch
from sglang.srt.managers.scheduler_components.batch_result_processor import SchedulerBatchResultProcessor
from sglang.srt.managers.utils import GenerationBatchResult
from sglang.srt.runtime_context import get_context
from sglang.srt.speculative import adaptive_runtime_state, adaptive_spec_params
from sglang.srt.speculative.eagle_worker_v2 import EAGLEWorkerV2

from sglang_adaptive.policy.ema import AdaptiveSpeculativeParams
from sglang_adaptive.runtime.controller import AdaptiveController
from sglang_adaptive.runtime.states import SpecRuntimeState
from sglang_adaptive.sglang_plugin.repairs import keep_latest_switch
from sglang_adaptive.sglang_plugin.round import Round
from sglang_adaptive.sglang_plugin.seams import scheduling
from sglang_adaptive.sglang_plugin.seams import worker as seam

SWITCHES = 10_000
ROUNDS = 60


def override_log(who: str) -> None:
    """Switch through SGLang's worker and print what its configuration context has kept of it."""
    context = get_context()
    with context.override_server_args():
        worker = _Worker(0)
        context.override("an operator", pp_max_micro_batch_size=5)
        for index in range(SWITCHES):
            state = _state((1, 3, 7)[index % 3])
            EAGLEWorkerV2.apply_runtime_state(worker, state)
            if who == "ours":
                keep_latest_switch()
            if index == SWITCHES // 2:
                context.override("an operator", pp_max_micro_batch_size=6)
        read_back = context.resolved_server_args_dict({})
        live = {"speculative_num_steps": state.speculative_num_steps}
        print(json.dumps({"entries": len(context.overrides_log()), "read_back": read_back, "live": live}))


def late_results(who: str, config: str) -> None:
    """Decode text of which every draft is right, with results a round late as under overlap; print the depths."""
    worker = _Worker(0)
    if who == "ours":
        controller: Any = AdaptiveController(worker, AdaptiveSpeculativeParams(0, config))
        worker.round = Round(worker, controller)
    else:
        policy = adaptive_spec_params.AdaptiveSpeculativeParams(0, config)
        controller = adaptive_runtime_state.AdaptiveController(worker, policy)
    worker.adaptive_controller = controller
    controller.register(_state(0))
    with get_context().override_server_args():
        controller.init_states()
        print(json.dumps(_decode(worker)))


def _decode(worker: _Worker) -> list[int]:
    """Return the depth of each of ROUNDS rounds."""
    depths: list[int] = []
    for _ in range(ROUNDS):
        EAGLEWorkerV2.activate_step_by_batch(worker, 1)
        depths.append(worker.speculative_num_steps)
        if len(depths) > 1:  # a round is launched; only now the one before it is processed
            _process(worker, depths[-2])
    return depths


def _process(worker: _Worker, steps: int) -> None:
    """Give the result of a round that accepted all of its *steps* drafts to SGLang's result processor."""
    # Nothing is settled for a retracted request, and the round counts all the same.
    request = SimpleNamespace(rid="0", is_retracted=True, kv=SimpleNamespace(kv_committed_len=100))
    batch = SimpleNamespace(reqs=[request], seq_lens_sum=100)
    result = GenerationBatchResult(
        next_token_ids=torch.zeros(steps + 1, dtype=torch.int64),
        accept_lens=torch.tensor([steps + 1]),
        speculative_num_draft_tokens=steps + 1,
    )
    processor = SimpleNamespace(
        model_worker=worker,
        metrics_reporter=SimpleNamespace(snapshot_spec_decode_metrics=lambda *_: None),
        advance_grammar_fsm=lambda *_: None,
    )
    resolve = SchedulerBatchResultProcessor._resolve_spec_v2_tokens
    if worker.round is None:
        resolve(processor, result, batch)
    else:
        scheduling.resolve(worker.round, resolve, processor, result, batch)


class _Worker:
    """Holds what SGLang's worker swaps at a switch; the methods are SGLang's."""

    adaptive_controller: Any
    round: Round | None = None
    """None as released."""
    apply_runtime_state = EAGLEWorkerV2.apply_runtime_state

    def __init__(self, steps: int) -> None:
        self.speculative_num_steps = steps
        self.speculative_num_draft_tokens = steps + 1
        self._draft_worker = SimpleNamespace(draft_runner=SimpleNamespace(), _rebuild_topk1_chain_buffers=lambda: None)
        self._target_worker = SimpleNamespace(model_runner=SimpleNamespace())

    def on_verify_complete_cpu(self, accepted: list[int], batch_size: int = 0) -> None:
        original = EAGLEWorkerV2.on_verify_complete_cpu
        if self.round is None:
            original(self, accepted, batch_size)
        else:
            seam.verified(self.round, original, self, accepted, batch_size)

    def build_adaptive_runtime_state(self, speculative_num_steps: int, **_: Any) -> SpecRuntimeState:
        return _state(speculative_num_steps)


def _state(steps: int) -> SpecRuntimeState:
    return SpecRuntimeState(steps, steps + 1, None, None, object(), None, None, None)
