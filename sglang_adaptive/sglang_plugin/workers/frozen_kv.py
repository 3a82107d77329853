"""Frozen-KV MTP: Gemma 4's assistant drafts from the target's own keys and values, and keeps none itself.

SGLang 0.5.23 runs it with the steps of the launch. Its worker inherits EAGLE's methods for runtime states. They fit but
for three things, which are here: the draft has one attention backend, that of its runner; a zero-step round drafts
nothing; and prefills take another path.

After each verify pass the draft gets the target's hidden state of the last accepted token, at zero steps as at all
others. That and the target's KV are all that it reads, so drafting resumes at once, and nothing has to catch up.
"""

from __future__ import annotations

from typing import Any

from sglang.srt.model_executor.cuda_graph_config import Backend, Phase, check_cuda_graph_backend
from sglang.srt.runtime_context import get_spec
from sglang.srt.speculative.frozen_kv_mtp_worker_v2 import FrozenKVMTPDraftWorker, FrozenKVMTPWorkerV2

from sglang_adaptive.runtime.states import SpecRuntimeState
from sglang_adaptive.sglang_plugin.state_builds import new_backend
from sglang_adaptive.sglang_plugin.workers.own_rounds import begin_rounds


class AdaptiveFrozenKVDraft(FrozenKVMTPDraftWorker):  # type: ignore[misc]  # SGLang's types are not followed
    """SGLang's draft with the method by which EAGLE's worker builds a runtime state, and rounds without drafts."""

    adaptive_worker: AdaptiveFrozenKVWorker

    def init_attention_backend(self) -> None:
        """Build the draft's backend of a further runtime state: a CUDA graph keeps the buffers of its own backend."""
        runner = self.draft_model_runner
        backend = new_backend(runner)
        self.draft_attn_backend = runner.draft_attn_backend = runner.attn_backend = backend

    def _capture_cuda_graphs(self) -> None:
        # SGLang's method leaves the earlier graph in place where it captures none.
        self.cuda_graph_runner = None
        if not check_cuda_graph_backend(Phase.DECODE, Backend.DISABLED):
            super()._capture_cuda_graphs()

    def draft(self, batch: Any) -> Any:
        """Return the drafts of a round as the input of its verify pass; at zero steps the bonus token alone."""
        if self.speculative_num_steps == 0:
            return self.adaptive_worker._build_trivial_verify_input(batch)
        return super().draft(batch)


class AdaptiveFrozenKVWorker(FrozenKVMTPWorkerV2):  # type: ignore[misc]  # SGLang's types are not followed
    """SGLang's worker with the controller that the methods inherited from EAGLE's worker use."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        with get_spec().override(speculative_adaptive=False):  # SGLang's constructor asserts it
            super().__init__(*args, **kwargs)
        # SGLang's constructor names the class of its draft, and nothing is built yet that depends on it.
        self._draft_worker.__class__ = AdaptiveFrozenKVDraft
        self._draft_worker.adaptive_worker = self
        self.round = begin_rounds(self)

    def apply_runtime_state(self, state: SpecRuntimeState) -> None:
        """Make *state* the live one; the draft's runner has no other backend than the draft's."""
        super().apply_runtime_state(state)
        self._draft_worker.draft_model_runner.attn_backend = state.draft_attn_backend

    def forward_batch_generation(self, batch: Any, *args: Any, pp_proxy_tensors: None = None, **kwargs: Any) -> Any:
        """Run a round or a prefill as SGLang does; do not time the round before a prefill.

        Without overlap SGLang passes *pp_proxy_tensors*, which its own worker does not take.
        """
        if batch.forward_mode.is_extend() or batch.is_extend_in_batch:
            self.round.interrupted()
        return super().forward_batch_generation(batch, *args, **kwargs)
