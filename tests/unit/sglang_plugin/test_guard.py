"""A part that fails is left to SGLang's code from then on, on all ranks where they have to do the same."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
import torch.multiprocessing as multiprocessing

from sglang_adaptive.sglang_plugin import env, guard
from sglang_adaptive.sglang_plugin.guard import FailedAloneError, Guard


def failing() -> None:
    raise ValueError("broken")


def test_a_guard_closes_at_the_first_error_and_stays_closed(caplog: pytest.LogCaptureFixture) -> None:
    part = Guard("adaptive: SGLang's way from now on")
    assert part.attempt(max, 2, 3) == 3 and not part.closed and part.error is None
    assert part.attempt(failing) is None and part.closed and part.error == "ValueError: broken"
    assert part.attempt(max, 2, 3) is None
    assert [record.message for record in caplog.records] == ["adaptive: SGLang's way from now on"]


def test_a_switch_closes_it_from_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    for value, closed in (("1", False), ("0", True)):
        monkeypatch.setenv(env.RESERVE_AHEAD.name, value)
        assert Guard("", env.RESERVE_AHEAD).closed is closed


def _rank(rank: int, store: str, failed: list[int], told: multiprocessing.SimpleQueue) -> None:
    from types import SimpleNamespace

    import torch.distributed
    from sglang.srt import runtime_context

    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    group = SimpleNamespace(world_size=2, rank_in_group=rank, cpu_group=torch.distributed.group.WORLD)
    runtime_context.get_parallel = lambda: SimpleNamespace(tp_group=group, attn_dp_size=1)
    torch.distributed.barrier()
    try:
        if rank in failed:
            guard.require_of_all(ValueError("broken"), timedelta(seconds=2 if len(failed) == 1 else 60))
        told.put((rank, "goes on"))
    except FailedAloneError as error:
        told.put((rank, str(error)))


@pytest.mark.parametrize("failed", [[0, 1], [0]])
def test_ranks_that_must_do_the_same_fail_together_or_end(failed: list[int], tmp_path: Path) -> None:
    told = multiprocessing.get_context("spawn").SimpleQueue()
    multiprocessing.spawn(_rank, (str(tmp_path / "store"), failed, told), nprocs=2)
    said = dict(told.get() for _ in range(2))
    assert said[1] == "goes on"
    if failed == [0]:
        assert said[0] == "adaptive: rank 0 failed and another did not, so the server cannot go on: ValueError: broken"
    else:
        assert said[0] == "goes on"
