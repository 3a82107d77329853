"""Measures one contender after the other: warms up, sends the requests of a phase, reads the server's state."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sglang_adaptive.client import Client, RequestError
from sglang_adaptive.lab.cpu_engine.server import CpuServer
from sglang_adaptive.lab.demo.progress import Progress
from sglang_adaptive.lab.demo.results import (
    SEVERAL,
    Contender,
    DemoError,
    Phase,
    PhaseResult,
    Run,
    Switch,
    tokens_per_second,
)
from sglang_adaptive.lab.demo.servers import PLAIN, Fleet, contenders

# Collects the policy's switches while the server still lists them.


READ_SECONDS = 2.0
"""Seconds between two reads; the server lists its latest switches only, and a read costs it some milliseconds."""

_OURS = ("forced", "released")
"""Causes of switches that the demo requested; they are not the policy's."""


class SwitchLog:
    """Switches since the state *before*, which is the `adaptive` block of /server_info; None without one."""

    def __init__(self, before: dict[str, Any] | None, clock: Callable[[], float] = time.monotonic) -> None:
        self.switches: list[Switch] = []
        self.unseen = 0
        """Switches that the server dropped from its list between two reads."""
        self._count = 0 if before is None else before["switches"]
        self._clock = clock
        self._read_at = clock()

    def is_due(self) -> bool:
        """Return whether the next read is due."""
        return self._clock() - self._read_at >= READ_SECONDS

    def read(self, state: dict[str, Any] | None) -> None:
        """Add the new switches of *state*."""
        self._read_at = self._clock()
        if state is None:
            return
        new = state["switches"] - self._count
        self._count = state["switches"]
        seen = state["recent_switches"][-new:] if new else []
        self.unseen += new - len(seen)
        decided = (entry for entry in seen if entry["cause"] not in _OURS)
        self.switches += [Switch(entry["time"], entry["from_steps"], entry["to_steps"]) for entry in decided]


# Measures one phase on one server: sends its requests, times them, and reads the server's state.


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
    return phase_result(client, phase, answers, begin=begin, seconds=seconds, before=before, log=log)


def phase_result(
    client: Client,
    phase: Phase,
    answers: Sequence[dict[str, Any]],
    *,
    begin: float,
    seconds: float,
    before: dict[str, Any] | None,
    log: SwitchLog,
) -> PhaseResult:
    """Return what a phase came to that has just ended: its *answers*, and the server's state since *before*."""
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


# Warms up each server, then measures one contender at a time while the other servers are idle.


WARM_UP_TOKENS = 24


def measure_all(
    fleet: Fleet, policies: Sequence[str], phases: Sequence[Phase], warm_prompts: Sequence[str], progress: Progress
) -> list[Run]:
    """Return the runs, the one without speculation first."""
    for key in (PLAIN, *policies):
        progress.now(f"warming up: {key}")
        with blaming(fleet[key], key):
            _warm_up(fleet[key], warm_prompts, progress)
    progress.done("warmed up")
    with blaming(fleet[policies[0]], policies[0]):
        tiers = _tiers(fleet[policies[0]])
    todo = contenders(policies, tiers)
    runs: list[Run] = []
    for number, contender in enumerate(todo, 1):
        label = f"{contender.title} ({number} of {len(todo)})"
        with blaming(fleet[contender.server], contender.title):
            runs.append(_measure(fleet[contender.server], contender, phases, label, progress))
        progress.done(f"{label}: {tokens_per_second(runs[-1].phases):.0f} tokens/s")
    return runs


def _measure(server: CpuServer, contender: Contender, phases: Sequence[Phase], label: str, progress: Progress) -> Run:
    if contender.forced_steps is not None:
        force_steps(server, contender.forced_steps)
    results: list[PhaseResult] = []
    for phase in phases:

        def tick(spoken: str = phase.spoken) -> None:
            progress.now(f"{label}: {spoken}")

        tick()
        results.append(measure_phase(server, phase, tick))
    if contender.forced_steps is not None:
        force_steps(server, None)
    state = adaptive_state(server)
    degraded = None if state is None else state["degraded_reason"]
    return Run(contender, _tiers(server), tuple(results), degraded)


def _tiers(server: CpuServer) -> tuple[int, ...]:
    state = adaptive_state(server)
    return () if state is None else tuple(state["tiers"])


def _warm_up(server: CpuServer, prompts: Sequence[str], progress: Progress) -> None:
    """Generate some tokens with all steps and concurrencies, so that no measured request is the first of its kind."""
    tiers = _tiers(server)
    for depth in tiers or (None,):
        if depth is not None:
            force_steps(server, depth)
        _send(server, prompts, progress)
    if tiers:
        force_steps(server, None)
        # The release takes effect at the next round, which must not be counted.
        _send(server, prompts, progress)


def _send(server: CpuServer, prompts: Sequence[str], progress: Progress) -> None:
    for concurrency in (1, SEVERAL):
        phase = Phase("warm-up", "mixed", concurrency, tuple(prompts[:concurrency]), WARM_UP_TOKENS)
        send_all(server, phase, lambda: progress.now("warming up"))


@contextmanager
def blaming(server: CpuServer, title: str) -> Iterator[None]:
    """Turn an error with *server* into a DemoError: one line and the end of its log."""
    try:
        yield
    except DemoError as error:
        raise DemoError(f"{title}: {error}", server.log_tail()) from error
    except (OSError, http.client.HTTPException, RequestError) as error:
        what = "" if server.is_running() else "the server has ended; "
        raise DemoError(f"{title}: {what}{type(error).__name__}: {error}", server.log_tail()) from error
