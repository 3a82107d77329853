"""SGLang plugin of the benchmarks: draws acceptance from a declared process or replays it, and counts rounds.

With dummy weights a draft is never right. SGLang can force accept lengths (``SGLANG_SIMULATE_ACC_LEN``). This replaces
the function behind that switch: draft j of every request is accepted with the declared probability if draft j - 1 was,
or a request accepts what a trace has at its position. Draft, verify, draft extend, scheduling and HTTP are the real
path. Call every figure made with it "simulated acceptance" or "replayed".

Benchmark and scheduler share a small mapped file. The benchmark writes the process, which the scheduler reads before
every round. The scheduler counts its decode rounds, so a figure covers whole rounds, timed where they happen, instead
of HTTP answers.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import hook_times, internals, plugin, stacks
from benchmarks.traces.files import requests
from sglang_adaptive.lab.simulate.trace import expected_tokens, hazards
from sglang_adaptive.lab.traces import read

PROCESS_FILE = "BENCHMARK_ACCEPTANCE_FILE"
"""Environment variable: the mapped file."""

REAL = "BENCHMARK_ACCEPTANCE_REAL"
"""Environment variable: "1" leaves acceptance to the models; rounds are still counted."""

TRACE_FILE = "BENCHMARK_ACCEPTANCE_TRACE"
"""Environment variable: the trace whose questions requests name."""

BLOCKS = "BENCHMARK_ACCEPTANCE_BLOCKS"
"""Environment variable: set if the draft proposes blocks (DFLASH)."""

CUSTOM = "acceptance"
"""Key in a request's ``sampling_params.custom_params``: its own process, as [p, decay]."""

QUESTION = "trace"
"""The same for a request with recorded acceptance: the number of its question in the server's trace."""

DEEPEST = 32
"""Deepest draft that a configuration may name."""

RING = 8192
"""How many of the latest round times are kept."""

DRAWN_AHEAD = 64
"""Rounds whose acceptance is drawn at once, so that a round costs only a few small operations on the device."""

_SRT = "sglang.srt."
_POSITION = "_benchmark_position"


def environment(path: Path, folder: Path, simulate: bool = True) -> dict[str, str]:
    """Return the variables of a server that counts into *path*; writes the plugin's metadata into *folder*."""
    variables = {PROCESS_FILE: str(path), **plugin.environment(folder, "benchmark_acceptance", __name__)}
    if not simulate:
        return {**variables, REAL: "1"}
    return {**variables, "SGLANG_SIMULATE_ACC_LEN": "1", "SGLANG_SIMULATE_ACC_TOKEN_MODE": "real-draft-token"}


def register() -> None:
    """Entry point: act in a scheduler process that has the file's variable."""
    if PROCESS_FILE not in os.environ or not plugin.in_scheduler():
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    if stacks.FILE in os.environ:
        stacks.install(os.environ[stacks.FILE])
    process = Process(os.environ[PROCESS_FILE])
    results = "managers.scheduler_components.batch_result_processor.SchedulerBatchResultProcessor."
    real = os.environ.get(REAL) == "1"
    meter = Meter(process, observed=real)
    HookRegistry.register(_SRT + results + "process_batch_result_decode", meter.decode, HookType.AROUND)
    for without_a_round in ("process_batch_result_prefill", "process_batch_result_idle"):
        HookRegistry.register(_SRT + results + without_a_round, meter.prefill, HookType.BEFORE)
    if real:
        return
    draw = Draw(process)
    HookRegistry.register(_SRT + "speculative.spec_utils.generate_simulated_accept_index", draw, HookType.REPLACE)
    HookRegistry.register(_SRT + "speculative.eagle_worker_v2.EAGLEWorkerV2.verify", draw.begin, HookType.BEFORE)
    # This plugin is loaded first, so the package's hook is around its own: a replayed verify pass calls no other.
    HookRegistry.register(internals.SHORT_RESULT, draw.begin, HookType.BEFORE)
    if BLOCKS in os.environ:
        blocks = _SRT + "speculative.dflash_worker_v2."
        HookRegistry.register(blocks + "apply_dflash_simulated_acceptance", draw.of_blocks, HookType.REPLACE)
        HookRegistry.register(blocks + "DFlashWorkerV2.forward_batch_generation", draw.begin_block, HookType.BEFORE)
    HookRegistry.register(internals.RESOLVING, draw.resolving, HookType.BEFORE)
    HookRegistry.register(internals.SHADOW_ACCEPTS, draw.shadow_accepts, HookType.AROUND)


# -- the mapped file ------------------------------------------------------------------------------------------------

_SET = ("p", "decay", "full_from", "sequence")
_COUNTED = (
    *("rounds", "requests", "tokens", "expected", "switches", "batch_size"),
    *("full_rounds", "full_seconds", "full_requests", "full_tokens", "full_expected"),
)
LAYOUT = np.dtype(
    [*((name, "f8") for name in (*_SET, *_COUNTED)), ("rounds_by_depth", "f8", DEEPEST + 1), ("ring", "f4", RING)]
)


@dataclass(frozen=True)
class Declared:
    """P(draft j accepted | draft j - 1 accepted) = min(1, p * decay ** (j - 1)), j from 1."""

    p: float
    decay: float = 1.0

    def expected(self, steps: int) -> float:
        """Return the expected tokens of a request from a round of *steps* drafts, including the bonus token."""
        return _expectations(self)[steps]


@lru_cache(maxsize=4096)
def _expectations(declared: Declared) -> tuple[float, ...]:
    return tuple(expected_tokens(hazards(declared.p, declared.decay, DEEPEST)).tolist())


@dataclass(frozen=True)
class Counted:
    """Decode rounds since the server started, or between two readings (see ``-``).

    ``expected`` is what the drafted rounds yield on average under the declared process: the tokens without the luck of
    the draw. The ``full_`` ones count rounds that followed another decode round, both with at least the requested
    number of requests.
    """

    rounds: float
    requests: float
    """Requests times rounds."""
    tokens: float
    expected: float
    switches: float
    """Rounds at another depth than the previous round."""
    batch_size: float
    """Batch size of the latest round."""
    full_rounds: float
    full_seconds: float
    full_requests: float
    full_tokens: float
    full_expected: float
    rounds_by_depth: tuple[float, ...]

    def __sub__(self, earlier: Counted) -> Counted:
        """Return the counts since *earlier*; the batch size is the latest."""
        own, before = vars(self), vars(earlier)
        spent = {name: own[name] - before[name] for name in _COUNTED if name != "batch_size"}
        depths = tuple(a - b for a, b in zip(self.rounds_by_depth, earlier.rounds_by_depth, strict=True))
        return Counted(**spent, batch_size=self.batch_size, rounds_by_depth=depths)

    def depths(self) -> dict[str, int]:
        """Return the rounds by depth, without unused depths; keys are strings, for JSON."""
        return {str(steps): int(rounds) for steps, rounds in enumerate(self.rounds_by_depth) if rounds}


class Process:
    """The mapped file. Raises ValueError when *path* is not one."""

    def __init__(self, path: str | Path, create: bool = False) -> None:
        if create:
            np.zeros(1, LAYOUT).tofile(path)
        if Path(path).stat().st_size != LAYOUT.itemsize:
            raise ValueError(f"{path}: not an acceptance file of this version; expected {LAYOUT.itemsize} bytes")
        self.path = Path(path)
        self._cell = np.memmap(path, dtype=LAYOUT, mode="r+", shape=(1,))[0]

    @property
    def declared(self) -> Declared:
        """The process of every request that declares none of its own; it takes effect in the next round."""
        return Declared(float(self._cell["p"]), float(self._cell["decay"]))

    @declared.setter
    def declared(self, value: Declared) -> None:
        self._cell["p"], self._cell["decay"] = value.p, value.decay

    @property
    def full_from(self) -> int:
        """A batch of at least this many requests counts as full; 0 counts none."""
        return int(self._cell["full_from"])

    @full_from.setter
    def full_from(self, requests: int) -> None:
        self._cell["full_from"] = requests

    def read(self) -> Counted:
        """Return the counters at one moment between two rounds."""
        while True:
            before = int(self._cell["sequence"])
            values = {name: float(self._cell[name]) for name in _COUNTED}
            depths = tuple(map(float, self._cell["rounds_by_depth"]))
            if before == int(self._cell["sequence"]) and not before % 2:
                return Counted(**values, rounds_by_depth=depths)
            time.sleep(0)

    def round_seconds(self, since: Counted) -> list[float]:
        """Return the times of the full-batch rounds after *since*, at most the latest RING of them."""
        end = int(self.read().full_rounds)
        return [float(self._cell["ring"][at % RING]) for at in range(max(int(since.full_rounds), end - RING), end)]

    def of_rank(self, rank: int) -> Path:
        """Return the file of attention-DP rank *rank*; rank 0, or the only one, has this file."""
        return self.path if rank == 0 else self.path.with_name(f"{self.path.name}.{rank}")

    def count(
        self, steps: int, requests: int, tokens: int, expected: float, switched: bool, full: float | None
    ) -> None:
        """In the scheduler: add a round. *full* is the seconds since the previous one if both had a full batch."""
        cell = self._cell
        cell["sequence"] += 1  # readers wait until it changes again
        cell["rounds"] += 1
        cell["requests"] += requests
        cell["tokens"] += tokens
        cell["expected"] += expected
        cell["switches"] += switched
        cell["batch_size"] = requests
        cell["rounds_by_depth"][steps] += 1
        if full is not None:
            cell["ring"][int(cell["full_rounds"]) % RING] = full
            cell["full_rounds"] += 1
            cell["full_seconds"] += full
            cell["full_requests"] += requests
            cell["full_tokens"] += tokens
            cell["full_expected"] += expected
        cell["sequence"] += 1


def own(request: Any) -> Declared | None:
    """Return the process that a request declares for itself."""
    declared = (request.sampling_params.custom_params or {}).get(CUSTOM)
    return Declared(*map(float, declared)) if isinstance(declared, Sequence) else None


def question(request: Any) -> int | None:
    """Return the question of the trace that a request names; None without one."""
    named = (request.sampling_params.custom_params or {}).get(QUESTION)
    return named if isinstance(named, int) else None


# -- which ranks run the same batch ---------------------------------------------------------------------------------


def _peers() -> Any:
    """Return the group of the ranks that run this rank's batch: all tensor-parallel ones without attention DP."""
    from sglang.srt.layers.dp_attention import get_dp_tp_group

    return get_dp_tp_group()


def _counted_into(process: Process) -> Process | None:
    """Return the mapped file for this rank's counts; None if another rank counts the same rounds.

    A rank of attention DP without a file from the benchmark is not counted.
    """
    from sglang.srt.runtime_context import get_parallel

    if _peers().rank_in_group:
        return None
    path = process.of_rank(int(get_parallel().attn_dp_rank))
    if path == process.path:
        return process
    return Process(path) if path.exists() else None


def _same_on_all_ranks(num_correct_drafts: Any) -> None:
    """Ranks that run one batch must accept the same drafts; a change of p reaches them rounds apart."""
    group = _peers()
    if group.world_size > 1:
        group.broadcast(num_correct_drafts, src=0)


# -- rounds, counted ------------------------------------------------------------------------------------------------


class Meter:
    """Counts decode rounds as their results are processed, only on the first of the ranks that run the same batch."""

    def __init__(
        self, process: Process, clock: Callable[[], float] = time.perf_counter, observed: bool = False
    ) -> None:
        """*observed* counts actual tokens as expected ones, because the models themselves decide acceptance."""
        self._process, self._clock, self._observed = process, clock, observed
        self._counted: Process | None = process
        self._first_round = True
        self._last_steps: int | None = None
        self._last: tuple[float, int] | None = None  # time and batch size of the preceding decode round

    def prefill(self, *_: Any, **__: Any) -> None:
        """Before a prefill result, this rank's or, with attention DP, another's: the next round's time includes it."""
        self._last = None

    def decode(self, original: Callable[..., None], processor: Any, batch: Any, result: Any) -> None:
        """Around a decode result: count what it added to the requests that still run."""
        if self._first_round:  # the ranks were unknown before
            self._first_round, self._counted = False, _counted_into(self._process)
        running = [req for req in batch.reqs if not req.finished()]
        before = sum(len(req.output_ids) for req in running)
        original(processor, batch, result)
        if self._counted is not None and running:
            self.count(running, sum(len(req.output_ids) for req in running) - before, result)

    def count(self, running: Sequence[Any], tokens: int, result: Any) -> None:
        """Add the round of *running* requests, which got *tokens* tokens in total."""
        width = result.speculative_num_draft_tokens
        steps = 0 if width is None else width - 1
        if self._observed or question(running[0]) is not None:
            expected: float = tokens
        else:
            common = self._process.declared
            expected = sum((own(req) or common).expected(steps) for req in running)
        now, requests, seconds = self._clock(), len(running), None
        if self._last is not None and 0 < self._counted.full_from <= min(self._last[1], requests):
            seconds = now - self._last[0]
        self._counted.count(steps, requests, tokens, expected, self._last_steps not in (None, steps), seconds)
        self._last, self._last_steps = (now, requests), steps


# -- acceptance, drawn ----------------------------------------------------------------------------------------------


class Draw:
    """Replaces SGLang's function: one accept length per request, drawn on the device or taken from a trace."""

    __name__ = "draw"

    def __init__(self, process: Process) -> None:
        self._process = process
        self._declared: tuple[Declared, ...] = ()
        self._drawn_for: tuple[Declared, ...] = ()
        self._chances: Any = None
        self._drawn: Any = None
        self._row = 0
        self._resolved: Sequence[Any] = ()
        self._chance = random.Random(0)  # all ranks draw the same
        self._replay = Replay.of_file(os.environ.get(TRACE_FILE))

    def begin(self, worker: Any, batch: Any, *_: Any, **__: Any) -> None:
        """Before a batch's drafts are accepted: record each request's process, its own or the common one."""
        common = self._process.declared
        self._declared = tuple(own(req) or common for req in batch.reqs)
        if self._replay is not None:
            self._replay.begin(batch.reqs)

    def begin_block(self, worker: Any, batch: Any, *_: Any, **__: Any) -> None:
        """Like `begin`, before a batch of a worker whose single method also runs prefills."""
        if not (batch.forward_mode.is_extend() or batch.is_extend_in_batch or batch.forward_mode.is_idle()):
            self.begin(worker, batch)

    def of_blocks(
        self,
        *,
        candidates: Any,
        target_predict: Any,
        accept_len: Any,
        commit_lens: Any,
        bonus: Any,
        out_tokens: Any,
        next_token_logits: Any = None,
        **_: Any,
    ) -> None:
        """Write the results of a round of blocks, by request: (bs,), and *out_tokens* (bs, width).

        *candidates* (bs, width) holds the last accepted token and the drafts, *target_predict* the token after each; a
        round with sampled requests has *next_token_logits* (bs * width, vocabulary) instead.
        """
        bs, width = candidates.shape
        if width == 1:
            return
        import torch

        correct = self._correct(bs, width - 1, candidates.device)
        if target_predict is None:
            target_predict = next_token_logits.argmax(dim=-1).view(bs, width)
        column = torch.arange(width, device=candidates.device)
        accept_len.copy_(correct)
        commit_lens.copy_(correct + 1)
        bonus.copy_(target_predict.gather(1, correct.long()[:, None])[:, 0])
        out_tokens.copy_(torch.where(column < correct[:, None], candidates.roll(-1, 1), bonus[:, None]))

    def _correct(self, bs: int, steps: int, device: Any) -> Any:
        """Return how many of *steps* drafts each request accepts: (bs,) int32, the same on all ranks."""
        import torch

        if self._replay is not None and self._replay.concerns(bs):
            counts = self._replay.accept(steps)
            correct = _on_device(torch.tensor(counts, dtype=torch.int32), device)
        else:
            correct = self._next(bs, device).clamp(max=steps)
        _same_on_all_ranks(correct)
        return correct

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

        Node i of request r's chain is at r * (spec_steps + 1) + i. A round without drafts is unchanged: its one node
        was already accepted.
        """
        if spec_steps == 0:
            return accept_index
        import torch

        width = spec_steps + 1
        num_correct_drafts.copy_(self._correct(bs, spec_steps, accept_index.device))
        correct = num_correct_drafts[:, None]
        column = torch.arange(width, dtype=torch.int32, device=accept_index.device)
        # A chain's node i predicts what follows it: the next draft while accepted, then the target's own token.
        predict.copy_(torch.where(column < correct, candidates.roll(-1, 1), target_predict).flatten())
        nodes = torch.arange(bs * width, dtype=torch.int32, device=accept_index.device).view(bs, width)
        return nodes.masked_fill_(column > correct, -1)

    def resolving(self, now: Any, rest: Any, processor: Any, result: Any, batch: Any) -> None:
        """Before a result is resolved: record its requests."""
        self._resolved = batch.reqs

    def shadow_accepts(
        self, original: Callable[..., list[int]], drafts: Any, pairs: Sequence[tuple[int, int]], result: Any
    ) -> list[int]:
        """Around the check of shadow drafts at zero steps: the same number of answers, drawn like the rest."""
        common, accepted = self._process.declared, []
        for req in (self._resolved[row] for row, _ in pairs):
            if self._replay is not None and question(req) is not None:
                accepted.append(self._replay.shadow(req))
            else:
                accepted.append(int(self._chance.random() < (own(req) or common).p))
        return accepted

    def _next(self, bs: int, device: Any) -> Any:
        """Return each request's accepted drafts at unlimited depth: (bs,), integers."""
        declared = self._declared
        if len(declared) != bs:
            raise RuntimeError(f"{bs} requests are verified, but {len(declared)} were declared")
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


def drawn_ahead(chances: Any, rounds: int) -> Any:
    """Return accepted drafts at unlimited depth, all independent: (rounds, requests), integers."""
    import torch

    passed = torch.rand(rounds, *chances.shape, device=chances.device) < chances
    return passed.to(torch.int32).cumprod(dim=2).sum(dim=2, dtype=torch.int32)


def _on_device(table: Any, device: Any) -> Any:
    """Return *table* on *device*: from pinned memory, because otherwise the scheduler would wait for the device."""
    import torch

    return table.pin_memory().to(device, non_blocking=True) if torch.device(device).type == "cuda" else table


# -- acceptance, replayed -------------------------------------------------------------------------------------------


class Replay:
    """The recorded counts, and the position of every request.

    With overlap scheduling a request's tokens reach the host after its next round has started. But what a round accepts
    is known in advance, so the position is counted here, on the request itself.
    """

    def __init__(self, questions: Sequence[bytes]) -> None:
        """*questions* holds L, 0 to C, at every position of every question (``benchmarks/traces``)."""
        self._questions = questions
        self._requests: Sequence[Any] = ()
        self._starts: list[int] = []

    @classmethod
    def of_file(cls, path: str | None) -> Replay | None:
        """Return the replay of the trace at *path*, None without one. Raises TraceError."""
        return cls([accepted.tobytes() for _, accepted, _ in requests(read(path))]) if path else None

    def begin(self, requests: Sequence[Any]) -> None:
        """Before a round of *requests*: record where each starts, and add the token that every round yields."""
        self._requests = requests if any(question(req) is not None for req in requests) else ()
        self._starts = [getattr(req, _POSITION, 0) for req in self._requests]
        for req, start in zip(self._requests, self._starts, strict=True):
            setattr(req, _POSITION, start + 1)

    def concerns(self, requests: int) -> bool:
        """Return whether the round of *requests* requests is replayed: one of them names a question of the trace.

        Requests beside it that name none accept no drafts: a late request of the server's own warm-up may join a batch.
        """
        return len(self._requests) == requests > 0

    def accept(self, steps: int) -> list[int]:
        """Return how many of *steps* drafts each request of the round accepts, and advance by that many.

        Zero-step rounds do not call this: their requests advance by one token.
        """
        counts = [min(self._at(req, start), steps) for req, start in zip(self._requests, self._starts, strict=True)]
        for req, start, count in zip(self._requests, self._starts, counts, strict=True):
            setattr(req, _POSITION, start + count + 1)
        return counts

    def shadow(self, request: Any) -> int:
        """Return 1 if the first draft after *request*'s tokens on the host is right, else 0."""
        return int(self._at(request, len(request.output_ids) - 1) > 0)

    def _at(self, request: Any, position: int) -> int:
        named = question(request)
        counts = b"" if named is None else self._questions[named]
        return counts[position] if 0 <= position < len(counts) else 0


if os.environ.get(hook_times.FILE) and plugin.in_scheduler():
    hook_times.install(os.environ[hook_times.FILE])  # at import: before any plugin adds its hooks
