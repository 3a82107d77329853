"""The runtime states of a server, attention backends and CUDA graphs for each kind of round, and their warm-up."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from sglang_adaptive.policy.base import AdaptivePolicy
from sglang_adaptive.policy.choice import CapturedSteps, Choice, Source, drafted

logger = logging.getLogger(__name__)

MOST_ROUNDS = 20_000
"""Rounds after which a pass of the warm-up ends by itself."""
PROGRESS_SECONDS = 10.0

Kind: TypeAlias = tuple[Source, int]
"""The source of a round's drafts, and their number."""


@dataclass(frozen=True, slots=True)
class SpecRuntimeState:
    """The attention backends and CUDA graphs of one kind of round, built at start-up and switched as a whole.

    SGLang's own class, which has the same fields, serves as well. An unused backend or runner is None: the draft's at
    zero steps, and graphs when CUDA graphs are off. They are untyped because this layer loads without SGLang.
    """

    speculative_num_steps: int
    speculative_num_draft_tokens: int
    """Draft tokens that a verify pass reads per request: steps + 1."""
    draft_attn_backend: Any
    cuda_graph_runner: Any

    target_attn_backend: Any
    target_graph_runner: Any

    draft_extend_attn_backend: Any
    cuda_graph_runner_for_draft_extend: Any


class AdaptiveWorker(Protocol):
    """The methods of a speculative worker that are called here; SGLang's EAGLEWorkerV2 has them."""

    speculative_num_steps: int

    def build_adaptive_runtime_state(
        self, speculative_num_steps: int, speculative_num_draft_tokens: int, cuda_graph_bs: list[int] | None = None
    ) -> SpecRuntimeState:
        """Build backends and graphs of one kind of round; slow, at start-up only."""

    def apply_runtime_state(self, state: SpecRuntimeState) -> None:
        """Make *state* the live one; a few reference assignments."""


class Device:
    """Batch sizes to capture and free memory of a device; this base class has no graphs and reports no memory."""

    def graph_batch_sizes(self) -> list[int] | None:
        """Return every batch size with graphs, None when graphs are off."""
        return None

    def sizes_to_capture(self, wanted: list[int] | None, every: list[int] | None) -> list[int] | None:
        """Return the sizes to capture, out of *every*, for steps that can be chosen at the sizes *wanted*."""
        return wanted

    def free_gigabytes(self) -> float | None:
        """Return the free device memory in GB of 2**30 bytes; None if unknown."""
        return None


class Progress:
    """Reports every ten seconds what start-up is doing, from its own thread; a context manager."""

    def __init__(self, say: Callable[[str], None], seconds: float = PROGRESS_SECONDS) -> None:
        """*say* gets a line such as "warm-up: batch size 16, 8 of 12; 21 s"."""
        self._say = say
        self._seconds = seconds
        self._now = ""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="start-up progress", daemon=True)

    def now(self, what: str) -> None:
        """Set what start-up is doing from now on."""
        self._now = what

    def __enter__(self) -> Progress:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        begun = time.perf_counter()
        while not self._ended.wait(self._seconds):
            self._say(f"{self._now}; {time.perf_counter() - begun:.0f} s")


class RuntimeStates:
    """Builds the runtime states at start-up, except that of the launch steps, which SGLang builds; makes one live."""

    def __init__(self, worker: AdaptiveWorker, device: Device | None = None) -> None:
        self._worker = worker
        self._device = device or Device()
        self.builds: list[dict[str, Any]] = []
        """For each state, as JSON: ``steps``; ``seconds`` to build it, None for the launch steps, whose state SGLang
        builds; ``gigabytes`` of 2**30 bytes less free memory; ``graph_batch_sizes``, ascending, None without graphs."""
        self.launch = drafted(worker.speculative_num_steps)
        """The steps that the server was launched with."""
        self.live = self.launch
        """What the current round does, or the latest one."""
        self.building_source = self.launch.source
        """The source of drafts of the state that is being built."""
        self.graph_batch_sizes: list[int] | None = None
        """Every batch size with CUDA graphs; None when they are off."""
        self.tiers: tuple[int, ...] = ()
        """The steps with a runtime state, and the numbers of drafts that may be looked up, which are others."""
        self.deepest = 0
        """The most draft steps with a runtime state."""
        self._sources: dict[int, Source] = {}
        """By tier, the source of its drafts."""
        self._states: dict[Kind, SpecRuntimeState] = {}
        self._graphs: dict[Kind, list[int] | None] = {}
        """Batch sizes with graphs, by kind."""
        self._lookups: Mapping[int, range] = {}
        """Batch sizes of lookup rounds by number of drafts."""

    def widest(self, batch_size: int) -> int:
        """Return the most drafts that a round of *batch_size* may have."""
        if not any(batch_size in sizes for sizes in self._lookups.values()):
            return self.deepest
        return max(self.deepest, *(steps for _, steps in self._kinds(batch_size)))

    @property
    def captured(self) -> CapturedSteps:
        """The steps with a runtime state, and the batch sizes of their CUDA graphs."""
        graphs = {steps: None if sizes is None else tuple(sizes) for (_, steps), sizes in self._graphs.items()}
        return CapturedSteps(
            dict(sorted(graphs.items())), frozenset(steps for source, steps in self._states if source is Source.LOOKUP)
        )

    @property
    def by_steps(self) -> list[SpecRuntimeState]:
        """All runtime states, by ascending steps."""
        return sorted(self._states.values(), key=lambda state: state.speculative_num_steps)

    def of(self, steps: int, why: str = "") -> Choice:
        """Return the choice of *steps*, one of ``tiers``, for the reason *why*."""
        return Choice(steps, self._sources[steps], why=why)

    def has(self, choice: Choice) -> bool:
        return choice.state in self._states

    def register(self, state: SpecRuntimeState) -> None:
        """Add a state without lookups that the worker has built, with graphs at every size."""
        self._add(drafted(state.speculative_num_steps).state, state)

    def build(self, policy: AdaptivePolicy) -> None:
        """Build the states of all kinds that *policy* may choose and that are not registered; the launch steps run.

        Graphs are captured for the batch sizes at which the policy may choose the kind. The launch steps, which run
        after a policy failure, have all graphs; SGLang has built them.
        """
        self.graph_batch_sizes = every = self._device.graph_batch_sizes()
        policy.set_cuda_graph_bs(every)
        for kind in self._states:
            self._record(kind, every)
        wanted = {drafted(steps).state: policy.cuda_graph_bs_for_step(steps) for steps in policy.candidate_steps}
        self._lookups = policy.lookup_kinds
        wanted |= {
            (Source.LOOKUP, drafts): None if every is None else [size for size in every if size in sizes]
            for drafts, sizes in self._lookups.items()
        }
        # Most steps first: graphs share one memory pool, and the widest pass allocates enough for the others.
        missing = sorted(wanted.keys() - self._states.keys(), key=lambda kind: -kind[1])
        with Progress(lambda line: logger.info("adaptive: building runtime states: %s", line)) as progress:
            for done, kind in enumerate(missing):
                progress.now(f"{kind[1]} steps, {done} of {len(missing)} are done")
                sizes = wanted[kind]
                if kind[0] is not Source.LOOKUP:  # SGLang's buffers have no room for wide rounds of large batches
                    sizes = self._device.sizes_to_capture(sizes, every)
                free, begun = self._device.free_gigabytes(), time.perf_counter()
                self._build(kind, sizes)
                seconds, left = time.perf_counter() - begun, self._device.free_gigabytes()
                self._record(kind, sizes, seconds, None if free is None or left is None else free - left)
        if not self.has(self.launch):
            steps = self.launch.steps
            raise ValueError(f"no runtime state for the launch depth, {steps} steps; built: {self.tiers}")
        self._worker.apply_runtime_state(self._states[self.launch.state])

    def rebuild(self) -> int:
        """Build every state again, with graphs for the same batch sizes; return their number. The live one stays live.

        Does nothing and returns 0 without graphs, because only graphs keep addresses, or with a single state, which
        SGLang recaptures.
        """
        others = [kind for kind in self._states if kind != self.live.state]
        if not others or not any(self._graphs.values()):
            return 0
        for kind in sorted(self._states, key=lambda kind: -kind[1]):
            self._build(kind, self._graphs[kind])
        # The worker ignores a state of its live steps, so switch to others first.
        for kind in (others[0], self.live.state):
            self._worker.apply_runtime_state(self._states[kind])
        return len(self._states)

    def run(self, choice: Choice) -> None:
        if choice.state != self.live.state:
            self._worker.apply_runtime_state(self._states[choice.state])
        self.live = choice

    def fitting(self, choice: Choice, most: int | None) -> Choice:
        """Return *choice* if it has at most *most* drafts, else the most that fit, or the fewest if none do."""
        if most is None or choice.steps <= most:
            return choice
        depths = [steps for steps, source in self._sources.items() if source is not Source.LOOKUP]
        return self.of(max((fewer for fewer in depths if fewer <= most), default=min(depths)), "capacity")

    def reachable(self, batch_size: int) -> list[Choice]:
        """Return what a round of *batch_size* may do, by ascending steps: what has a graph, if anything has one."""
        return [Choice(steps, source) for source, steps in sorted(self._kinds(batch_size), key=lambda kind: kind[1])]

    def _kinds(self, batch_size: int) -> list[Kind]:
        """Return the same in no order, for every round."""
        padded = next((size for size in self.graph_batch_sizes or () if size >= batch_size), None)
        if padded is None:
            lookups = self._lookups
            return [kind for kind in self._states if kind[0] is not Source.LOOKUP or batch_size in lookups[kind[1]]]
        return [kind for kind in self._states if padded in (self._graphs[kind] or ())]

    def _build(self, kind: Kind, sizes: list[int] | None) -> None:
        self.building_source, steps = kind
        made = self._worker.build_adaptive_runtime_state(
            speculative_num_steps=steps,
            speculative_num_draft_tokens=steps + 1,
            cuda_graph_bs=None if sizes is None else list(sizes),
        )
        self._add(kind, made)

    def _add(self, kind: Kind, state: SpecRuntimeState) -> None:
        self._states[kind] = state
        self._sources = {steps: source for source, steps in self._states}
        self.tiers = tuple(sorted(self._sources))
        self.deepest = max((steps for steps, of in self._sources.items() if of is not Source.LOOKUP), default=0)

    def _record(
        self, kind: Kind, sizes: list[int] | None, seconds: float | None = None, taken: float | None = None
    ) -> None:
        self._graphs[kind] = sizes
        self.builds.append({"steps": kind[1], "seconds": seconds, "gigabytes": taken, "graph_batch_sizes": sizes})


class WarmUp:
    """Runs passes over all kinds of rounds; deterministic, so that tensor-parallel ranks agree."""

    def __init__(self, reachable: Callable[[int], Sequence[Choice]]) -> None:
        """*reachable* returns what a round of a batch size may do, in the order to run it."""
        self._reachable = reachable
        self._counts: Counter[tuple[int, Choice]] = Counter()
        """Rounds of the latest pass."""
        self._begun: float | None = None
        self.runs = False
        self.rounds = 0
        """Rounds of all passes."""
        self.seconds: float | None = None
        """Seconds from the beginning of the first pass to the end of the latest; None before it."""

    def begin(self) -> None:
        if self._begun is None:
            self._begun = time.perf_counter()
        self._counts.clear()
        self.runs = True

    def end(self) -> None:
        assert self._begun is not None
        self.runs, self.seconds = False, time.perf_counter() - self._begun

    def choose(self, batch_size: int) -> Choice:
        """Return and count what ran least at *batch_size*; ties go to the first."""
        choice = min(self._reachable(batch_size), key=lambda choice: self._counts[batch_size, choice])
        self._counts[batch_size, choice] += 1
        self.rounds += 1
        return choice

    @property
    def overdue(self) -> bool:
        return self._counts.total() >= MOST_ROUNDS

    def covered(self) -> list[int]:
        """Return the batch sizes at which all that is reachable ran in the latest pass, ascending."""
        seen = {batch_size for batch_size, _ in self._counts}
        return sorted(size for size in seen if all(self._counts[size, choice] for choice in self._reachable(size)))

    def as_dict(self) -> dict[str, Any]:
        return {"warm_up_seconds": self.seconds, "warm_up_rounds": self.rounds, "warmed_batch_sizes": self.covered()}
