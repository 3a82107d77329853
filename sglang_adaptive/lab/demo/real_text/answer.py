"""Sends one question to one server, shows the growing answer, and times it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from sglang_adaptive.client import Client
from sglang_adaptive.lab.demo.errors import DemoError
from sglang_adaptive.lab.demo.measure import adaptive_state, new_rounds
from sglang_adaptive.lab.demo.results import PhaseResult
from sglang_adaptive.lab.demo.switch_log import SwitchLog
from sglang_adaptive.lab.demo.workload import Phase

Grown = Callable[[str, int], None]
"""Called with the text so far and its number of tokens."""


def measure_answer(client: Client, phase: Phase, prompt: Sequence[int], grown: Grown) -> PhaseResult:
    """Let an idle server answer *prompt*, from an empty prefix cache; greedy, up to the end of the turn."""
    client.flush_cache()
    before = adaptive_state(client)
    log = SwitchLog(before)
    begin, start = time.time(), time.perf_counter()
    last: dict[str, Any] | None = None
    for last in client.stream(list(prompt), phase.max_new_tokens):
        grown(last["text"], last["meta_info"]["completion_tokens"])
        if log.is_due():
            log.read(adaptive_state(client))
    seconds = time.perf_counter() - start
    if last is None:
        raise DemoError("the server sent no answer")
    after = adaptive_state(client)
    log.read(after)
    return PhaseResult(
        phase=phase,
        begin=begin,
        seconds=seconds,
        outputs=(tuple(last["output_ids"]),),
        verify_rounds=last["meta_info"].get("spec_verify_ct", 0),
        rounds_by_depth=new_rounds(before, after),
        first_steps=None if before is None else before["current_steps"],
        switches=tuple(log.switches),
        switches_unseen=log.unseen,
    )
