"""Shared code of workers to which SGLang gives no controller: their start, and the start and end of a round."""

from __future__ import annotations

from typing import Any

from sglang.srt.runtime_context import get_context, get_spec

from sglang_adaptive.runtime.states import SpecRuntimeState
from sglang_adaptive.sglang_plugin import repairs
from sglang_adaptive.sglang_plugin.configuration import configuration
from sglang_adaptive.sglang_plugin.rounds import Rounds, begin
from sglang_adaptive.sglang_plugin.start.controller import ForWorker, build_policy
from sglang_adaptive.sglang_plugin.start.state_builds import build_state

Parts = tuple[Any, Any]
"""An attention backend and its CUDA graphs; each is None if a state has none."""
NOTHING: Parts = (None, None)


def begin_rounds(worker: Any) -> Rounds:
    """Make this process's rounds for *worker*, with the configured policy."""
    made = begin(worker, build_policy(worker.speculative_num_steps, configuration(), get_spec()))
    worker.adaptive_controller = ForWorker(made.controller)
    return made


def parts_of(runner: Any) -> Parts:
    """Return the attention backend and CUDA graphs of *runner*, SGLang's model runner."""
    return runner.attn_backend, runner.decode_cuda_graph_runner


class OwnRounds:
    """First base, before SGLang's worker, of an adaptive worker with one runtime state per width."""

    rounds: Rounds
    speculative_num_steps: int
    speculative_num_draft_tokens: int
    _target_worker: Any

    # -- start-up -------------------------------------------------------------------------------------------------

    def init_cuda_graphs(self) -> None:
        """Build the runtime states of all widths, and get ready for rounds."""
        self.rounds.start(type(self)._build_states, self)

    def _build_states(self) -> None:
        super().init_cuda_graphs()  # type: ignore[misc]  # SGLang's
        self.rounds.controller.states.register(self._launch_state())

    def build_adaptive_runtime_state(
        self, speculative_num_steps: int, speculative_num_draft_tokens: int, cuda_graph_bs: list[int] | None = None
    ) -> SpecRuntimeState:
        """Build the backends, CUDA graphs and buffers of one width, which is live during the build."""
        live, width = self.speculative_num_draft_tokens, speculative_num_draft_tokens
        self._take_width(width)
        try:
            made: SpecRuntimeState = build_state(type(self)._build, self, speculative_num_steps, width, cuda_graph_bs)
        finally:
            self._take_width(live)
        return made

    def _launch_state(self) -> SpecRuntimeState:
        return self._state(parts_of(self._target_worker.model_runner))

    def _build(self, steps: int, width: int, sizes: list[int] | None) -> SpecRuntimeState:
        """Build the runtime state of the live width, as `build_state` calls SGLang's method."""
        raise NotImplementedError

    def _take_width(self, width: int) -> None:
        """Make *width* the live one: the numbers and the buffers that depend on it."""
        raise NotImplementedError

    def _state(self, target: Parts, draft: Parts = NOTHING, extend: Parts = NOTHING) -> SpecRuntimeState:
        """Return the state of the live width from the parts of *target*, *draft* and draft *extend*."""
        steps = self.speculative_num_steps
        return SpecRuntimeState(steps, steps + 1, *draft, *target, *extend)

    # -- every round ----------------------------------------------------------------------------------------------

    def forward_batch_generation(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
        """Run a batch as SGLang does, and note what its round does; do not time the round before a prefill."""
        launch = super(OwnRounds, type(self)).forward_batch_generation  # type: ignore[misc]  # SGLang's
        return self.rounds.launch(launch, self, batch, *args, **kwargs)

    def activate_step_by_batch(self, batch_size: int) -> None:
        self.rounds.controller.choose(batch_size)

    def on_verify_complete_cpu(self, num_correct_drafts_per_req: list[int], batch_size: int = 0) -> None:
        self.rounds.verified(super().on_verify_complete_cpu, self, num_correct_drafts_per_req, batch_size)  # type: ignore[misc]

    def apply_runtime_state(self, state: SpecRuntimeState) -> None:
        """Make *state* the live one."""
        width = state.speculative_num_draft_tokens
        self._take_width(width)
        self._take_draft(state)
        runner = self._target_worker.model_runner
        runner.attn_backend, runner.decode_cuda_graph_runner = state.target_attn_backend, state.target_graph_runner
        get_context().override(repairs.SWITCH, **self._spec_of(width))
        repairs.keep_latest_switch()

    def _take_draft(self, state: SpecRuntimeState) -> None:
        """Let the draft use what *state* has for it."""
        raise NotImplementedError

    def _spec_of(self, width: int) -> dict[str, int]:
        """Return the fields of SGLang's arguments that depend on *width*."""
        return {"speculative_num_draft_tokens": width}
