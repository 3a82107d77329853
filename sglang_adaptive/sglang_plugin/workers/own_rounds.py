"""What workers have in common to which SGLang gives no controller: how a round begins, ends and changes its width."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sglang_adaptive.runtime.states import SpecRuntimeState
from sglang_adaptive.sglang_plugin.start.policies import fitted

if TYPE_CHECKING:
    from sglang_adaptive.policy.config import AdaptiveConfig
    from sglang_adaptive.runtime.controller import AdaptiveController
    from sglang_adaptive.sglang_plugin.round import Round


class OwnRounds:
    """Goes before SGLang's worker among the bases of an adaptive one."""

    round: Round
    adaptive_controller: AdaptiveController
    _target_worker: Any

    def fit(self, config: AdaptiveConfig) -> AdaptiveConfig:
        """Return what of *config* this worker can run, as when the server started."""
        from sglang.srt.runtime_context import get_spec

        return fitted(config, max(self.adaptive_controller.built.graphs), get_spec())

    def activate_step_by_batch(self, batch_size: int) -> None:
        """Let the controller choose the steps of the next round."""
        self.round.choose_steps(batch_size)

    def on_verify_complete_cpu(self, num_correct_drafts_per_req: list[int], batch_size: int = 0) -> None:
        """Pass a round's accepted drafts to the controller."""
        self.round.verified(num_correct_drafts_per_req, batch_size)

    def _take_target(self, state: SpecRuntimeState) -> None:
        """Let the target verify with the backend and the graphs of *state*."""
        runner = self._target_worker.model_runner
        runner.attn_backend, runner.decode_cuda_graph_runner = state.target_attn_backend, state.target_graph_runner
