"""How often the draft's extend runs at zero steps: what a server says of it, and how it is changed while it runs."""

from __future__ import annotations

from typing import Any

from sglang_adaptive.cpu_engine.server import CpuServer
from tests.engine.workload import Case, adaptive, run


def test_the_server_says_and_changes_how_often(ema: CpuServer, easy: list[str]) -> None:
    def every(rounds: Any) -> Any:
        return ema.post("/set_internal_state", {"server_args": {"adaptive_zero_step_extend_every": rounds}})

    ema.force_steps(0)
    for rounds in (8, 3, 1):
        assert every(rounds) == [True]
        before = adaptive(ema)["zero_steps"]
        run(ema, [Case(easy[0], max_new_tokens=25)], at_once=1)
        after = adaptive(ema)["zero_steps"]
        held = after["held_rounds"] - before["held_rounds"]
        assert (after["extend_every"], after["reason"]) == (rounds, None)
        assert (held, after["extends"] - before["extends"]) == ((24, 24 // rounds) if rounds > 1 else (0, 0))
    for refused in (0, 9, 2.5):
        assert every(refused) == [False]
    assert every(8) == [True]
    ema.force_steps(None)
