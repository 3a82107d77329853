"""A part that fails is left to SGLang's code from then on, on all ranks if they must act alike."""

from __future__ import annotations

from pathlib import Path

import pytest

from sglang_adaptive.policy.errors import ConfigError
from sglang_adaptive.sglang_plugin import env
from sglang_adaptive.sglang_plugin.guard import Guard
from tests import checks


def failing() -> None:
    raise ValueError("broken")


def test_a_guard_closes_at_the_first_error_and_stays_closed(caplog: pytest.LogCaptureFixture) -> None:
    part = Guard("relay")
    assert part.attempt(max, 2, 3) == 3 and not part.closed and part.error is None
    assert part.attempt(failing) is None and part.closed and part.error == "ValueError: broken"
    assert part.attempt(max, 2, 3) is None
    assert caplog.messages == ["adaptive: disabled relay after an error; the server goes on without it"]


def test_the_variable_closes_it_from_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    for value, closed in (("", False), ("isolation", False), ("isolation, relay,", True)):
        monkeypatch.setenv(env.OFF, value)
        assert Guard("relay").closed is closed
    monkeypatch.setenv(env.OFF, "relay,RELAY,relays")
    with pytest.raises(ConfigError, match="SGLANG_ADAPTIVE_OFF: got RELAY, relays; expected some of attention-dp, "):
        Guard("relay")


RANKS = """
import json, multiprocessing
from datetime import timedelta
from types import SimpleNamespace
import torch.distributed
from sglang.srt import runtime_context
from sglang_adaptive.sglang_plugin import guard

def run(rank, told):
    torch.distributed.init_process_group("gloo", init_method="file://STORE", rank=rank, world_size=2)
    group = SimpleNamespace(world_size=2, rank_in_group=rank, cpu_group=torch.distributed.group.WORLD)
    runtime_context.get_parallel = lambda: SimpleNamespace(tp_group=group, attn_dp_size=1)
    torch.distributed.barrier()
    try:
        if rank in FAILED:
            guard.require_of_all(ValueError("broken"), timedelta(seconds=2 if len(FAILED) == 1 else 60))
        told.put((rank, "goes on"))
    except guard.FailedAloneError as error:
        told.put((rank, str(error)))

fork = multiprocessing.get_context("fork")
told = fork.SimpleQueue()
ranks = [fork.Process(target=run, args=(rank, told)) for rank in range(2)]
for rank in ranks:
    rank.start()
for rank in ranks:
    rank.join()
print(json.dumps([said for _, said in sorted(told.get() for _ in ranks)]))
"""


@pytest.mark.parametrize("failed", [[0, 1], [0]])
def test_ranks_that_must_do_the_same_fail_together_or_end(failed: list[int], tmp_path: Path) -> None:
    first, second = checks.scripted(RANKS.replace("STORE", str(tmp_path / "store")).replace("FAILED", str(failed)))
    assert second == "goes on"
    if failed == [0]:
        assert first == "adaptive: rank 0 failed and another did not, so the server cannot go on: ValueError: broken"
    else:
        assert first == "goes on"
