"""Measures one phase on one server: sends its requests, times them, and reads the server's state."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from sglang_adaptive.client import Client
from sglang_adaptive.lab.demo.errors import DemoError
from sglang_adaptive.lab.demo.results import PhaseResult
from sglang_adaptive.lab.demo.switch_log import SwitchLog
from sglang_adaptive.lab.demo.workload import Phase

TICK_SECONDS = 0.5


def adaptive_state(client: Client) -> dict[str, Any] | None:
    """Return the `adaptive` block of /server_info; None on a server without adaptive speculation.

    Raises DemoError when the server should adapt and does not.
    """
    state: dict[str, Any] | None = client.server_info()["internal_states"][0].get("adaptive")
    if state is not None and not state["active"]:
        raise DemoError(f"the server does not adapt: {state['reason']}")
    return state


def force_steps(client: Client, steps: int | None) -> None:
    """Hold *steps*, or release them with None."""
    answer = client.force_steps(steps)
    if answer != [True]:
        raise DemoError(f"the server refused to hold {steps} steps: {answer}")


def measure_phase(client: Client, phase: Phase, tick: Callable[[], None]) -> PhaseResult:
    """Run *phase* on an idle server, from an empty prefix cache; *tick* is called at intervals."""
    client.flush_cache()
    before = adaptive_state(client)
    log = SwitchLog(before)
    begin, start = time.time(), time.perf_counter()

    def watch() -> None:
        tick()
        if log.is_due():
            log.read(adaptive_state(client))

    answers = send_all(client, phase, watch)
    seconds = time.perf_counter() - start
    after = adaptive_state(client)
    log.read(after)
    return PhaseResult(
        phase=phase,
        begin=begin,
        seconds=seconds,
        outputs=tuple(tuple(answer["output_ids"]) for answer in answers),
        verify_rounds=sum(answer["meta_info"].get("spec_verify_ct", 0) for answer in answers),
        rounds_by_depth=new_rounds(before, after),
        first_steps=None if before is None else before["current_steps"],
        switches=tuple(log.switches),
        switches_unseen=log.unseen,
    )


def send_all(client: Client, phase: Phase, tick: Callable[[], None]) -> list[dict[str, Any]]:
    """Return the answers to the phase's requests, in order, keeping `concurrency` of them in flight.

    Raises the error of the first request that failed.
    """
    waiting = list(enumerate(phase.prompts))[::-1]
    answers: dict[int, dict[str, Any]] = {}
    failures: list[Exception] = []

    def work() -> None:
        while not failures:
            try:
                index, prompt = waiting.pop()
            except IndexError:
                return
            try:
                answers[index] = client.generate(prompt, phase.max_new_tokens, ignore_eos=True)
            except Exception as error:  # raised again below, in the calling thread
                failures.append(error)

    # Daemons, so that an interrupt does not wait for pending answers.
    workers = [threading.Thread(target=work, daemon=True) for _ in range(phase.concurrency)]
    for worker in workers:
        worker.start()
    for worker in workers:
        while worker.is_alive():
            worker.join(TICK_SECONDS)
            tick()
    if failures:
        raise failures[0]
    return [answers[index] for index in range(len(phase.prompts))]


def new_rounds(before: dict[str, Any] | None, after: dict[str, Any] | None) -> dict[int, int]:
    """Return the server's rounds by steps between two states of `adaptive_state`; none without speculation."""
    if before is None or after is None:
        return {}
    earlier = before["rounds_by_tier"]
    counts = {int(tier): count - earlier.get(tier, 0) for tier, count in after["rounds_by_tier"].items()}
    return {tier: count for tier, count in counts.items() if count}
