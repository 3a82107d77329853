"""Real controllers and policies that verify rounds without an engine, for tests of their reports."""

from __future__ import annotations

from array import array
from typing import Any

from sglang_adaptive.lookups.counter import LookupCounter
from sglang_adaptive.policy.base import AdaptivePolicy
from sglang_adaptive.policy.config import AuditOptions, check_config
from sglang_adaptive.policy.ema import AdaptiveSpeculativeParams
from sglang_adaptive.runtime.controller import AdaptiveController
from sglang_adaptive.runtime.round_times import RoundClock
from sglang_adaptive.runtime.states import SpecRuntimeState
from sglang_adaptive.sglang_plugin.audit_scheduler import Audits, Report


class Worker:
    """Holds the live state, which is all that the controller uses."""

    speculative_num_steps = 3

    def build_adaptive_runtime_state(
        self, speculative_num_steps: int, speculative_num_draft_tokens: int, cuda_graph_bs: list[int] | None = None
    ) -> SpecRuntimeState:
        return SpecRuntimeState(speculative_num_steps, speculative_num_draft_tokens, *[None] * 6)

    def apply_runtime_state(self, state: SpecRuntimeState) -> None:
        self.speculative_num_steps = state.speculative_num_steps


def controller(policy: AdaptivePolicy, clock: RoundClock | None = None, looks_up: bool = False) -> AdaptiveController:
    worker = Worker()
    found = AdaptiveController(worker, policy, clock=clock)
    found.allow_lookups(looks_up)
    found.register(worker.build_adaptive_runtime_state(3, 4))
    found.init_states()
    return found


def serve(found: AdaptiveController, rounds: int, accepted: float, batch_size: int = 2) -> dict[str, Any]:
    """Verify rounds that accept a share of the drafts; return the state as /server_info shows it."""
    for _ in range(rounds):
        found.activate_step_by_batch(batch_size)
        steps = found.worker.speculative_num_steps
        found.on_verify_complete([round(steps * accepted)] * batch_size, batch_size)
    return found.snapshot()


def with_lookups(found: AdaptiveController) -> AdaptiveController:
    """Let *found* report the lookups of one finished request, which copies most of its prompt."""
    counter = LookupCounter()
    counter.add(array("q", range(100)), array("q", [*range(20, 80), 7, 3]))
    counter.close()
    found.count_lookups = counter.report
    return found


def with_audit(found: AdaptiveController, verdict: str) -> AdaptiveController:
    """Let *found* report an audit with one *verdict*."""
    from sglang.srt.runtime_context import get_context, get_parallel

    with get_context().override_server_args(), get_parallel().override(dp_rank=None):
        Audits(found, AuditOptions(0.001)).count(Report(0, 0, "a request", verdict, 0.01, 7, 2.5))
    return found


def ema(**slot: Any) -> AdaptiveController:
    config = check_config({"1": {"candidate_steps": [0, 1, 3, 7], **slot}}, "test")
    return controller(AdaptiveSpeculativeParams(3, config=config))
