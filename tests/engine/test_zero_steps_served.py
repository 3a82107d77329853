"""How often the draft's extend runs at zero steps: what a server reports, and how it changes at run time."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from sglang_adaptive.client import RequestError
from sglang_adaptive.lab.cpu_engine.server import CpuServer
from tests.engine.workload import Case, adaptive, run


def test_the_server_says_and_changes_how_often(ema: CpuServer, easy: list[str]) -> None:
    def every(rounds: Any) -> Any:
        return ema.post("/set_internal_state", {"server_args": {"adaptive_zero_step_extend_every": rounds}})

    # Every second time, held rows are only written and the latest stays owed, so the next time is one round earlier.
    for rounds, times in ((8, 3), (3, 9), (1, 0)):
        assert every(rounds) == [True]
        ema.force_steps(3)
        run(ema, [Case(easy[0], max_new_tokens=8)], at_once=1)  # drafts, so no earlier request owes anything
        ema.force_steps(0)
        before = adaptive(ema)["zero_steps"]
        run(ema, [Case(easy[0], max_new_tokens=25)], at_once=1)
        after = adaptive(ema)["zero_steps"]
        held, extends, writes = (after[what] - before[what] for what in ("held_rounds", "extends", "writes"))
        assert (after["extend_every"], after["reason"]) == (rounds, None)
        assert (held, extends + writes) == (24 if times else 0, times)
        assert abs(extends - writes) <= 1
    for refused in (0, 9, 2.5, None):
        told = f"adaptive_zero_step_extend_every: got {json.dumps(refused)}; expected an integer from 1 to 8"
        with pytest.raises(RequestError, match=f'400 .*"{re.escape(told)}"'):
            every(refused)
    assert every(8) == [True]
    ema.force_steps(None)
