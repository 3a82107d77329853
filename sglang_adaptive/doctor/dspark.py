"""Checks whether a DSPARK launch line has the table that SGLang's planner needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sglang_adaptive.doctor.check import NOTE, OK, PROBLEM, Check

NAME = "DSPARK table"
_MEASURE = "`sglang-adaptive calibrate --dspark --output FILE` measures one, on a server of this line"
_TABLE = "--speculative-dspark-sps-table-path"


def check(planner: Mapping[str, Any] | None) -> Check | None:
    """Return the check of *planner*, a line's ``mode``, ``table`` and ``problem`` of reading it; None without one."""
    if planner is None:
        return None
    mode, table, problem = planner["mode"], planner["table"], planner["problem"]
    if table is None:
        return Check(NAME, NOTE, f"none, so every draft of every request is verified: {_MEASURE}, for {_TABLE}")
    if problem is not None:
        return Check(NAME, PROBLEM, f"{table}: {problem}; {_MEASURE}")
    if mode == "static":
        words = f"{table} is not read: its planner is off without SGLANG_RAGGED_VERIFY_MODE=compact"
        return Check(NAME, NOTE, words)
    return Check(NAME, OK, f"{table}, from which SGLang plans how many drafts to verify")
