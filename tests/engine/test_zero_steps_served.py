"""How often the draft's extend runs at zero steps: what a server says of it, and how it is changed while it runs."""

from __future__ import annotations

from typing import Any

from sglang_adaptive.cpu_engine.server import CpuServer
from tests.engine.workload import Case, adaptive, run


def test_the_server_says_and_changes_how_often(ema: CpuServer, easy: list[str]) -> None:
    def every(rounds: Any) -> Any:
        return ema.post("/set_internal_state", {"server_args": {"adaptive_zero_step_extend_every": rounds}})

    ema.force_steps(0)
    # Every second time held rows are only written, and the latest stays owed: the next time is one round sooner.
    for rounds, times in ((8, 3), (3, 9), (1, 0)):
        assert every(rounds) == [True]
        before = adaptive(ema)["zero_steps"]
        run(ema, [Case(easy[0], max_new_tokens=25)], at_once=1)
        after = adaptive(ema)["zero_steps"]
        held, extends, writes = (after[what] - before[what] for what in ("held_rounds", "extends", "writes"))
        assert (after["extend_every"], after["reason"]) == (rounds, None)
        assert held == 24 if times else held <= 1  # what the request before still owed ends with the first round
        assert abs(extends + writes - times) <= 1 and abs(extends - writes) <= 1
    for refused in (0, 9, 2.5):
        assert every(refused) == [False]
    assert every(8) == [True]
    ema.force_steps(None)
