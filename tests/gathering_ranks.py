"""Runs attention DP ranks through SGLang's gather, without a model: ``python -m tests.gathering_ranks RANKS FILE``.

Real MLPSyncBatchInfo objects in a real gloo group, with this package's hooks. Each rank is a process; the findings are
printed as one JSON list.
"""

from __future__ import annotations

import json
import multiprocessing
import random
import sys
from types import SimpleNamespace
from typing import Any

from sglang.srt.distributed.parallel_state import init_distributed_environment, init_model_parallel_group
from sglang.srt.managers.scheduler_components.dp_attn import MLPSyncBatchInfo
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.runtime_context import get_parallel

from sglang_adaptive.policy.throughput import ThroughputOptions, ThroughputPolicy
from sglang_adaptive.runtime.joint_steps import JointSteps
from sglang_adaptive.sglang_plugin import hooks
from sglang_adaptive.sglang_plugin.hooks import Process
from sglang_adaptive.sglang_plugin.notes import note_of
from sglang_adaptive.sglang_plugin.rounds import Rounds
from sglang_adaptive.sglang_plugin.stage import Stage, set_current
from sglang_adaptive.sglang_plugin.stages.attention_dp import AgreedSteps
from tests.fakes import controller
from tests.gathering_plan import FAILS, FORCED, IDLE, ROUNDS, WARM


def main(ranks: int, file: str) -> None:
    """Run every rank in a fork, all at once, and print the findings."""
    with multiprocessing.get_context("fork").Pool(ranks) as pool:
        # One task each: no process may take a second task, because ranks only end together.
        print(json.dumps(pool.starmap(one, [(rank, ranks, file) for rank in range(ranks)], chunksize=1)))


def one(rank: int, ranks: int, file: str) -> dict[str, Any]:
    init_distributed_environment(ranks, rank, f"file://{file}", rank, "gloo")
    group = init_model_parallel_group([list(range(ranks))], rank, "gloo", use_pynccl=False, group_name="tp")
    hooks.install_now(hook for hook in hooks.hooks(Process.SCHEDULER) if "MLPSyncBatchInfo" in hook.target)
    with get_parallel().override(tp_group=group):
        before = _fields(_gathered(ranks, group, 5 + rank))
        found = controller(ThroughputPolicy(3, ThroughputOptions((0, 1, 2, 3, 5, 7))))
        now = Rounds(None, found)
        now.use([AgreedSteps(found, JointSteps(found, rank))])
        set_current(now)
        after = _fields(_gathered(ranks, group, 5 + rank))
        rounds = [_round(at, rank, ranks, group, now) for at in range(ROUNDS)]
    steps, largest = zip(*rounds, strict=True)
    cells = {cell["batch_size"] for cell in found.snapshot()["round_times"]}
    return {
        "fields": [before, after],
        "steps": steps,
        "largest": largest,
        "timed": sorted(cells),
        "degraded": found.snapshot()["degraded_reason"],
    }


def _round(at: int, rank: int, ranks: int, group: Any, now: Rounds) -> tuple[int, int]:
    """Return the steps of a round (-1 for a prefill) and the largest batch in its result's note."""
    draw, found = random.Random(1000 * rank + at), now.controller
    if rank == 0 and at == WARM[0]:
        found.warm_up.begin()
    if rank == 0 and at == WARM[1]:
        found.end_warm_up()
    if at == FORCED[0] + 3 * rank:  # the other rank hears of it a little later
        found.force_steps(7)
    if at == FORCED[1] + 3 * rank:
        found.force_steps(None)
    if rank == 1 and at == FAILS:
        del found.policy._acceptance  # type: ignore[attr-defined]
    requests = 0 if rank == 0 and IDLE[0] <= at < IDLE[1] else draw.randint(1, 6) + 10 * (rank == at // 50 % ranks)
    _gathered(ranks, group, 0)  # for prefills: no rank has any
    if at % 17 == 0:  # rank 0 prefills, the others idle
        _gathered(ranks, group, 300 if rank == 0 else 0, extends=rank == 0)
        return -1, -1
    _gathered(ranks, group, requests)
    found.choose(requests)
    steps = found.states.live.steps
    result = SimpleNamespace(speculative_num_draft_tokens=steps + 1)
    batch = SimpleNamespace(forward_mode=ForwardMode.DECODE, is_extend_in_batch=False)
    now.around(Stage.launch, lambda *_: result)(None, batch)
    note = note_of(result, found.states)
    largest = note.largest_batch
    assert largest is not None
    if requests:
        good = 0.9 if rank else 0.4
        counts = [next((k for k in range(steps) if draw.random() > good), steps) for _ in range(requests)]
        found.verified(counts, requests, note)
    return steps, largest


def _gathered(ranks: int, group: Any, tokens: int, extends: bool = False) -> MLPSyncBatchInfo:
    mode = ForwardMode.EXTEND if extends else ForwardMode.DECODE if tokens else ForwardMode.IDLE
    info = MLPSyncBatchInfo(ranks, 1, 1, tokens, tokens, True, True, False, extends, False, mode.value)
    info.all_gather("cpu", group.cpu_group)
    return info


def _fields(info: MLPSyncBatchInfo) -> dict[str, Any]:
    """Return the gathered fields that SGLang reads, and SGLang's own columns."""
    plain = {name: value for name, value in vars(info).items() if isinstance(value, int | list)}
    return plain | {"columns": info.tp0_info_cpu[:, :11].tolist()}


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
