"""Frozen-KV MTP: Gemma 4's assistant drafts from the target's own keys and values and keeps none itself.

SGLang 0.5.23 runs it with the launch steps. Its worker inherits EAGLE's methods for runtime states. This file handles
three differences: the draft has one attention backend, that of its runner; a zero-step round drafts nothing; and
prefills take another path.

After each verify pass, at any number of steps, the draft gets the target's hidden state of the last accepted token. It
reads only that and the target's KV, so drafting resumes at once without a catch-up.
"""

from __future__ import annotations

from typing import Any

from sglang.srt.model_executor.cuda_graph_config import Backend, Phase, check_cuda_graph_backend
from sglang.srt.runtime_context import get_spec
from sglang.srt.speculative.frozen_kv_mtp_worker_v2 import FrozenKVMTPDraftWorker, FrozenKVMTPWorkerV2

from sglang_adaptive.runtime.states import SpecRuntimeState
from sglang_adaptive.sglang_plugin.start.state_builds import new_backend
from sglang_adaptive.sglang_plugin.workers.own_rounds import begin_rounds


class AdaptiveFrozenKVDraft(FrozenKVMTPDraftWorker):  # type: ignore[misc]  # SGLang's types are not followed
    """SGLang's draft with the method that EAGLE's worker uses to build a runtime state, and zero-step rounds."""

    adaptive_worker: AdaptiveFrozenKVWorker

    def init_attention_backend(self) -> None:
        """Build the draft's backend for another runtime state: a CUDA graph keeps its own backend's buffers."""
        runner = self.draft_model_runner
        backend = new_backend(runner)
        self.draft_attn_backend = runner.draft_attn_backend = runner.attn_backend = backend

    def _capture_cuda_graphs(self) -> None:
        # SGLang's method keeps the earlier graph if it captures none.
        self.cuda_graph_runner = None
        if not check_cuda_graph_backend(Phase.DECODE, Backend.DISABLED):
            super()._capture_cuda_graphs()

    def draft(self, batch: Any) -> Any:
        """Return a round's verify input; at zero steps only the bonus token."""
        if self.speculative_num_steps == 0:
            return self.adaptive_worker._build_trivial_verify_input(batch)
        return super().draft(batch)


class AdaptiveFrozenKVWorker(FrozenKVMTPWorkerV2):  # type: ignore[misc]  # SGLang's types are not followed
    """SGLang's worker with the controller that the methods inherited from EAGLE's worker use."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        with get_spec().override(speculative_adaptive=False):  # SGLang's constructor asserts that
            super().__init__(*args, **kwargs)
        # SGLang's constructor fixes the draft's class, and nothing that depends on it is built yet.
        self._draft_worker.__class__ = AdaptiveFrozenKVDraft
        self._draft_worker.adaptive_worker = self
        self.rounds = begin_rounds(self)

    def apply_runtime_state(self, state: SpecRuntimeState) -> None:
        """Make *state* the live one; the draft's runner has no other backend than the draft's."""
        super().apply_runtime_state(state)
        self._draft_worker.draft_model_runner.attn_backend = state.draft_attn_backend

    def forward_batch_generation(self, batch: Any, *args: Any, pp_proxy_tensors: None = None, **kwargs: Any) -> Any:
        """Run a batch as SGLang does, and note what its round does; do not time the round before a prefill.

        Without overlap SGLang passes *pp_proxy_tensors*, which its own worker does not take.
        """
        return self.rounds.launch(FrozenKVMTPWorkerV2.forward_batch_generation, self, batch, *args, **kwargs)
