"""Workers, policies and clocks that run nothing, and real controllers that verify rounds without an engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sglang_adaptive.policy.base import AdaptivePolicy
from sglang_adaptive.policy.choice import Choice, Coming, drafted
from sglang_adaptive.policy.config import AuditOptions, check_config
from sglang_adaptive.policy.observation import RoundObservation
from sglang_adaptive.runtime.controller import AdaptiveController
from sglang_adaptive.runtime.round_times import RoundClock
from sglang_adaptive.runtime.states import Device, SpecRuntimeState
from sglang_adaptive.sglang_plugin.stage import Stage, Stages
from sglang_adaptive.sglang_plugin.stages.audit_scheduler import Audits, Report


def state(steps: int) -> SpecRuntimeState:
    return SpecRuntimeState(steps, steps + 1, None, None, object(), None, None, None)


class Worker:
    """A worker that runs nothing: it holds the live state, which is all that the controller uses."""

    def __init__(self, steps: int = 3) -> None:
        self.speculative_num_steps = steps
        self.built: list[tuple[int, int, list[int] | None]] = []
        self.live: SpecRuntimeState | None = None

    def build_adaptive_runtime_state(
        self, speculative_num_steps: int, speculative_num_draft_tokens: int, cuda_graph_bs: list[int] | None = None
    ) -> SpecRuntimeState:
        self.built.append((speculative_num_steps, speculative_num_draft_tokens, cuda_graph_bs))
        return state(speculative_num_steps)

    def apply_runtime_state(self, state: SpecRuntimeState) -> None:
        """Ignore a state of the current depth, like SGLang's worker."""
        if state.speculative_num_steps != self.speculative_num_steps:
            self.live, self.speculative_num_steps = state, state.speculative_num_steps


class ScriptedPolicy(AdaptivePolicy):
    """Returns scripted answers and records its input."""

    name = "scripted"

    def __init__(self, candidates: list[int], answer: int) -> None:
        self.candidate_steps = candidates
        self.answer: Any = answer
        self.seen: list[RoundObservation] = []
        self.fails_on = ""

    def choose(self, coming: Coming) -> Choice:
        if self.fails_on == "choose":
            raise RuntimeError("no idea")
        return drafted(self.answer)

    def observe(self, observation: RoundObservation) -> None:
        if self.fails_on == "observe":
            raise ZeroDivisionError("by zero")
        self.seen.append(observation)

    def cuda_graph_bs_for_step(self, step: int) -> list[int] | None:
        return None if self._graph_sizes is None else [bs for bs in self._graph_sizes if bs >= step]

    def snapshot(self) -> dict[str, Any]:
        if self.fails_on == "snapshot":
            raise KeyError("lost")
        return {"answer": self.answer}


class InTurn(AdaptivePolicy):
    """Runs each of *depths* for five rounds, and records what it is told and after how many choices."""

    def __init__(self, depths: Sequence[int]) -> None:
        self.depths = depths
        self.chosen: list[int] = []
        self.told: list[tuple[int, RoundObservation]] = []

    def choose(self, coming: Coming) -> Choice:
        self.chosen.append(self.depths[len(self.chosen) // 5 % len(self.depths)])
        return drafted(self.chosen[-1])

    def observe(self, observation: RoundObservation) -> None:
        self.told.append((len(self.chosen), observation))


class Ticks:
    """A clock that the test advances."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Sized(Device):
    """A device with graphs for these batch sizes, and one gigabyte less after every reading."""

    def __init__(self, sizes: list[int] | None) -> None:
        self.sizes, self.free = sizes, 10.0

    def graph_batch_sizes(self) -> list[int] | None:
        return self.sizes

    def free_gigabytes(self) -> float:
        self.free -= 1.0
        return self.free


class Learner(ScriptedPolicy):
    """A policy that hands over its table after every second round."""

    def __init__(self) -> None:
        super().__init__([0, 1, 3], 3)
        self.cost_sync_due = False
        self.table: Any = None

    def observe(self, observation: RoundObservation) -> None:
        super().observe(observation)
        self.cost_sync_due = len(self.seen) % 2 == 0

    def export_cost(self) -> dict[str, Any]:
        if self.fails_on == "export":
            raise OverflowError("too much")
        return {"rounds": len(self.seen)}

    def import_cost(self, payload: Any) -> None:
        self.table, self.cost_sync_due = payload, False


def serving(
    answer: int = 3, sizes: Sequence[int] | None = (1, 2, 4, 8)
) -> tuple[AdaptiveController, Worker, ScriptedPolicy, Ticks]:
    """*sizes* are those of the graphs, if there are any."""
    worker, policy, ticks = Worker(), ScriptedPolicy([0, 1, 3, 7], answer), Ticks()
    clock, device = RoundClock(ticks), Sized(None if sizes is None else list(sizes))
    return controller(policy, clock, worker=worker, device=device, wall_time=ticks), worker, policy, ticks


def controller(
    policy: AdaptivePolicy,
    clock: RoundClock | None = None,
    looks_up: bool = False,
    worker: Worker | None = None,
    **more: Any,
) -> AdaptiveController:
    worker = worker or Worker()
    found = AdaptiveController(worker, policy, clock=clock, **more)
    found.allow_lookups(looks_up)
    found.states.register(state(worker.speculative_num_steps))
    found.build_states()
    return found


def stages_of(found: AdaptiveController, *stages: Stage) -> Stages:
    """Return the stages of a server with the controller *found*."""
    made = Stages(None, found)
    made.use(stages)
    return made


def serve(found: AdaptiveController, rounds: int, accepted: float, batch_size: int = 2) -> dict[str, Any]:
    """Verify rounds that accept a share of the drafts; return the state as /server_info shows it."""
    for _ in range(rounds):
        found.choose(batch_size)
        steps = found.states.live.steps
        found.verified([round(steps * accepted)] * batch_size, batch_size)
    return found.snapshot()


def with_alarm(found: AdaptiveController, words: str = "planted") -> AdaptiveController:
    """Let *found* raise the alarm about acceptance."""
    assert found.acceptance_watch is not None
    found.acceptance_watch.raise_alarm(words, {"accepted": 0})
    return found


def with_audit(found: AdaptiveController, verdict: str) -> AdaptiveController:
    """Let *found* report an audit with one *verdict*."""
    from sglang.srt.runtime_context import get_context, get_parallel

    with get_context().override_server_args(), get_parallel().override(dp_rank=None):
        Audits(found, AuditOptions(0.001)).count(Report(0, 0, "a request", verdict, 0.01, 7, 2.5))
    return found


def ema(**slot: Any) -> AdaptiveController:
    config = check_config({"1": {"candidate_steps": [0, 1, 3, 7], **slot}}, "test")
    return controller(config.build_policy(3))
