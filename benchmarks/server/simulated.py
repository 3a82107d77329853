"""SGLang plugin of the benchmarks: acceptance drawn from a declared process or replayed, and rounds counted.

With dummy weights a draft is never right. SGLang can force accept lengths (``SGLANG_SIMULATE_ACC_LEN``); this replaces
the function behind that switch, so that draft j of every request is accepted with the declared probability if draft
j - 1 was, or that a request accepts what a trace says of its own position (replayed.py). Draft, verify, draft-extend,
scheduling and HTTP stay the real path. Every figure made with it is to be called "simulated acceptance", or "replayed".
"""

from __future__ import annotations

import multiprocessing
import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.served import hook_times  # noqa: F401  (puts clocks around our hooks where a server is told to)
from benchmarks.server import graph_recorder, replayed_budget
from benchmarks.server.process import DEEPEST, Declared, Process, own, replayed
from benchmarks.server.replayed import TRACE_FILE, Replay
from sglang_adaptive.simulate.acceptance import hazards

PROCESS_FILE = "BENCHMARK_ACCEPTANCE_FILE"
"""Environment variable: the mapped file, shared by benchmark and scheduler."""

REAL = "BENCHMARK_ACCEPTANCE_REAL"
"""Environment variable: "1" leaves acceptance to the models; rounds are counted all the same."""

VERIFY_BUDGET = "SGLANG_ADAPTIVE_VERIFY_BUDGET"
"""This package's variable that forces a budget."""

ENTRY_POINT = "benchmark_simulated_acceptance"
DRAWN_AHEAD = 64
"""Rounds whose acceptance is drawn at once, so that a round costs a few small operations on the device."""

_SRT = "sglang.srt."
_ROUNDS = "sglang_adaptive.runtime.rounds.Rounds."


def environment(path: Path, plugin_folder: Path, simulate: bool = True) -> dict[str, str]:
    """Return the variables that a server needs to simulate; writes the plugin's metadata into *plugin_folder*."""
    info = plugin_folder / f"{ENTRY_POINT}-0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {ENTRY_POINT}\nVersion: 0\n")
    (info / "entry_points.txt").write_text(f"[sglang.srt.plugins]\n{ENTRY_POINT} = {__name__}:register\n")
    root = Path(__file__).resolve().parents[2]
    inherited = [folder for folder in [os.environ.get("PYTHONPATH")] if folder]
    variables = {
        PROCESS_FILE: str(path),
        "PYTHONPATH": os.pathsep.join([str(plugin_folder), *inherited, str(root)]),
    }
    if not simulate:
        return {**variables, REAL: "1"}
    return {**variables, "SGLANG_SIMULATE_ACC_LEN": "1", "SGLANG_SIMULATE_ACC_TOKEN_MODE": "real-draft-token"}


def register() -> None:
    """Entry point: act in a scheduler process that is told where the file is."""
    # The scheduler's entry function lives in this module: only a scheduler has it loaded this early.
    in_scheduler = multiprocessing.parent_process() is not None and "sglang.srt.managers.scheduler" in sys.modules
    if PROCESS_FILE not in os.environ or not in_scheduler:
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    process = Process(os.environ[PROCESS_FILE])
    results = "managers.scheduler_components.batch_result_processor.SchedulerBatchResultProcessor."
    real = os.environ.get(REAL) == "1"
    meter = Meter(process, observed=real)
    HookRegistry.register(_SRT + results + "process_batch_result_decode", meter.decode, HookType.AROUND)
    HookRegistry.register(_SRT + results + "process_batch_result_prefill", meter.prefill, HookType.BEFORE)
    HookRegistry.register(_ROUNDS + "activate_step_by_batch", Alternation(process).choose, HookType.AROUND)
    graph_recorder.record()
    if real:
        return
    draw = Draw(process)
    HookRegistry.register(_SRT + "speculative.spec_utils.generate_simulated_accept_index", draw, HookType.REPLACE)
    HookRegistry.register(_SRT + "speculative.eagle_worker_v2.EAGLEWorkerV2.verify", draw.begin, HookType.BEFORE)
    accepts = "sglang_adaptive.sglang_plugin.scheduler.shadow_acceptance.shadow_accepts"
    HookRegistry.register(accepts, draw.shadow_accepts, HookType.AROUND)


class Draw:
    """In the place of SGLang's function: one accept length a request, drawn on the device."""

    __name__ = "draw"

    def __init__(self, process: Process) -> None:
        self._process = process
        self._declared: tuple[Declared, ...] = ()
        self._drawn_for: tuple[Declared, ...] = ()
        self._chances: Any = None
        self._drawn: Any = None
        self._row = 0
        self._chance = random.Random(0)  # every rank draws the same
        self._replay = Replay.of_file(os.environ.get(TRACE_FILE))
        asked = self._replay is not None and VERIFY_BUDGET in os.environ
        self._budget = replayed_budget.register(self._replay) if asked and self._replay is not None else None

    def begin(self, worker: Any, batch: Any, *_: Any, **__: Any) -> None:
        """Before a batch is verified: note each request's process, its own or the common one."""
        common = self._process.declared
        self._declared = tuple(own(req.sampling_params.custom_params) or common for req in batch.reqs)
        if self._replay is not None:
            self._replay.begin(batch.reqs)

    def __call__(
        self,
        accept_index: Any,
        predict: Any,
        num_correct_drafts: Any,
        candidates: Any,
        target_predict: Any,
        bs: int,
        spec_steps: int,
        **_: Any,
    ) -> Any:
        """Fill *predict* (bs * (spec_steps + 1)) and *num_correct_drafts* (bs) in place; return the accept index.

        A chain's node i of request r stands at r * (spec_steps + 1) + i. A round without drafts is left as it is: its
        one node was accepted already.
        """
        if spec_steps == 0:
            return accept_index
        import torch

        width = spec_steps + 1
        if self._replay is not None and self._replay.concerns(bs):
            counts = self._replay.accept(spec_steps, None if self._budget is None else self._budget.take())
            num_correct_drafts.copy_(_on_device(torch.tensor(counts, dtype=torch.int32), accept_index.device))
        else:
            num_correct_drafts.copy_(self._next(bs, accept_index.device).clamp(max=spec_steps))
        _same_on_all_ranks(num_correct_drafts)
        correct = num_correct_drafts[:, None]
        column = torch.arange(width, dtype=torch.int32, device=accept_index.device)
        # A chain's node i predicts what follows it: the next draft while accepted, then the target's own token.
        predict.copy_(torch.where(column < correct, candidates.roll(-1, 1), target_predict).flatten())
        nodes = torch.arange(bs * width, dtype=torch.int32, device=accept_index.device).view(bs, width)
        return nodes.masked_fill_(column > correct, -1)

    def shadow_accepts(self, original: Callable[..., list[int]], result: Any, batch: Any) -> list[int]:
        """Around the check of shadow drafts at zero steps: as many answers, drawn like the rest."""
        from sglang_adaptive.sglang_plugin.scheduler.shadow_acceptance import rows

        common, accepted = self._process.declared, []
        for req in (batch.reqs[row] for row in rows(result)):
            if self._replay is not None and replayed(req.sampling_params.custom_params) is not None:
                accepted.append(self._replay.shadow(req))
            else:
                p = (own(req.sampling_params.custom_params) or common).p
                accepted.append(int(self._chance.random() < p))
        return accepted

    def _next(self, bs: int, device: Any) -> Any:
        """Return how many drafts of each request would be accepted at unlimited depth: (bs,), integers."""
        declared = self._declared
        if len(declared) != bs:
            raise RuntimeError(f"{bs} requests are verified, {len(declared)} were announced")
        if self._drawn_for != declared:
            self._drawn_for, self._chances, self._row = declared, chances_of(declared, device), DRAWN_AHEAD
        if self._row == DRAWN_AHEAD:
            self._drawn, self._row = drawn_ahead(self._chances, DRAWN_AHEAD), 0
        self._row += 1
        return self._drawn[self._row - 1]


def chances_of(declared: Sequence[Declared], device: Any) -> Any:
    """Return P(draft j accepted | draft j - 1 accepted) on *device*: (len(declared), DEEPEST)."""
    import torch

    return _on_device(torch.tensor([hazards(one.p, one.decay, DEEPEST).tolist() for one in declared]), device)


def _on_device(table: Any, device: Any) -> Any:
    import torch

    # From pinned memory, or the scheduler would wait for the device.
    return table.pin_memory().to(device, non_blocking=True) if torch.device(device).type == "cuda" else table


def drawn_ahead(chances: Any, rounds: int) -> Any:
    """Return accepted drafts at unlimited depth, all independent: (rounds, requests), integers."""
    import torch

    passed = torch.rand(rounds, *chances.shape, device=chances.device) < chances
    return passed.to(torch.int32).cumprod(dim=2).sum(dim=2, dtype=torch.int32)


def _same_on_all_ranks(num_correct_drafts: Any) -> None:
    """Under tensor parallelism every rank has to accept the same drafts; a change of p reaches them rounds apart."""
    from sglang.srt.runtime_context import get_parallel

    group = get_parallel().tp_group
    if group.world_size > 1:
        group.broadcast(num_correct_drafts, src=0)


class Alternation:
    """Lets every second round of held steps run others, where the benchmark asks for that."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._second = False

    def choose(self, original: Callable[..., None], rounds: Any, batch_size: int) -> None:
        """Around the choice of a round's steps."""
        held, other = rounds._forced_steps, self._process.other_steps
        self._second = not self._second
        if held is not None and other is not None and self._second:
            rounds._forced_steps = other
        try:
            original(rounds, batch_size)
        finally:
            rounds._forced_steps = held


class Meter:
    """Counts decode rounds as their results are processed; on the first tensor-parallel rank alone."""

    def __init__(
        self, process: Process, clock: Callable[[], float] = time.perf_counter, observed: bool = False
    ) -> None:
        """*observed* counts the tokens that came as those that were expected: acceptance is the models' own."""
        self._process, self._clock, self._observed = process, clock, observed
        self._first_rank: bool | None = None
        self._last_steps: int | None = None
        self._last: tuple[float, int] | None = None  # time and batch size of the decode round just before

    def prefill(self, *_: Any, **__: Any) -> None:
        """Before a prefill result: the next decode round's time includes it."""
        self._last = None

    def decode(self, original: Callable[..., None], processor: Any, batch: Any, result: Any) -> None:
        """Around a decode result: count what it added to the requests that still run."""
        if self._first_rank is None:
            from sglang.srt.runtime_context import get_parallel

            self._first_rank = get_parallel().tp_group.rank_in_group == 0
        running = [req for req in batch.reqs if not req.finished()]
        before = sum(len(req.output_ids) for req in running)
        original(processor, batch, result)
        if self._first_rank and running:
            self.count(running, sum(len(req.output_ids) for req in running) - before, result)

    def count(self, running: Sequence[Any], tokens: int, result: Any) -> None:
        """Add the round of *running* requests, which got *tokens* tokens together."""
        width = result.speculative_num_draft_tokens
        steps = 0 if width is None else width - 1
        if self._observed or replayed(running[0].sampling_params.custom_params) is not None:
            expected: float = tokens
        else:
            common = self._process.declared
            expected = sum((own(req.sampling_params.custom_params) or common).expected(steps) for req in running)
        now, requests = self._clock(), len(running)
        switched = self._last_steps is not None and self._last_steps != steps
        full, least = self._process.full_batch, self._process.least_batch
        self._process.change()
        self._process.count(steps, requests, tokens, expected, switched)
        if self._last is not None and self._last[1] == requests == full:
            self._process.count_steady(now - self._last[0], tokens, expected)
        if self._last is not None and 0 < least <= min(self._last[1], requests):
            self._process.count_busy(now - self._last[0], requests, tokens)
        self._process.change()
        self._last, self._last_steps = (now, requests), steps
