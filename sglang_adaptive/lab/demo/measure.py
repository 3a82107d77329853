"""Measures one contender after another: warms up, sends the requests of a phase, reads the server's state."""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from sglang_adaptive.client import Client, RequestError, in_parallel
from sglang_adaptive.lab.cpu_engine.server import CpuServer
from sglang_adaptive.lab.demo.results import SEVERAL, Contender, DemoError, Phase, PhaseResult, Run, tokens_per_second
from sglang_adaptive.lab.demo.servers import Fleet, contenders
from sglang_adaptive.lab.demo.terminal import Progress, rounds_by_steps

READ_SECONDS = 2.0
"""Seconds between two reads. The server lists only its latest switches, and a read costs it a few milliseconds."""

_OURS = ("forced", "released")
"""Causes of switches that the demo requested itself, not the policy."""


class SwitchLog:
    """Switches since the state *before*, the `adaptive` block of /server_info; None without one."""

    def __init__(self, before: dict[str, Any] | None) -> None:
        self.switches: list[tuple[float, int]] = []
        self.unseen = 0
        """Switches that the server dropped from its list between two reads."""
        self._count = 0 if before is None else before["switches"]
        self.read_at = time.monotonic()
        """Second of the latest read."""

    def read(self, state: dict[str, Any] | None) -> None:
        """Add the new switches of *state*."""
        self.read_at = time.monotonic()
        if state is None:
            return
        new = state["switches"] - self._count
        self._count = state["switches"]
        seen = state["recent_switches"][-new:] if new else []
        self.unseen += new - len(seen)
        self.switches += [(entry["time"], entry["to_steps"]) for entry in seen if entry["cause"] not in _OURS]


TICK_SECONDS = 0.5
"""Seconds between two calls while requests run."""


def adaptive_state(client: Client) -> dict[str, Any] | None:
    """Return the `adaptive` block of /server_info; None on a server without adaptive speculation.

    Raises DemoError when the server should adapt but does not.
    """
    state: dict[str, Any] | None = client.server_info()["internal_states"][0].get("adaptive")
    if state is not None and not state["active"]:
        raise DemoError(f"the server does not adapt: {state['reason']}")
    return state


def force_steps(client: Client, steps: int | None) -> None:
    """Hold *steps*, or release them if None."""
    answer = client.force_steps(steps)
    if answer != [True]:
        raise DemoError(f"the server refused to hold {steps} steps: {answer}")


def measure_phase(
    client: Client,
    phase: Phase,
    send: Callable[[Callable[[], None]], Sequence[dict[str, Any]]],
    show: Callable[[], None] = lambda: None,
) -> PhaseResult:
    """Return the result of *phase* on an idle server with an empty prefix cache.

    *send* returns the answers in prompt order. It calls its argument at intervals, which calls *show*.
    """
    client.flush_cache()
    before = adaptive_state(client)
    log = SwitchLog(before)

    def look() -> None:
        show()
        if time.monotonic() - log.read_at >= READ_SECONDS:
            log.read(adaptive_state(client))

    begin, start = time.time(), time.perf_counter()
    answers = send(look)
    seconds = time.perf_counter() - start
    after = adaptive_state(client)
    log.read(after)
    return PhaseResult(
        phase=phase,
        begin=begin,
        seconds=seconds,
        outputs=tuple(tuple(answer["output_ids"]) for answer in answers),
        verify_rounds=sum(answer["meta_info"].get("spec_verify_ct", 0) for answer in answers),
        rounds_by_depth=rounds_by_steps(after) - rounds_by_steps(before),
        first_steps=None if before is None else before["current_steps"],
        switches=tuple(log.switches),
        switches_unseen=log.unseen,
    )


def finished(client: Client, contender: Contender, results: Sequence[PhaseResult]) -> Run:
    """Return the run of *results*, with the server's final state."""
    state = adaptive_state(client) or {"tiers": (), "degraded_reason": None}
    return Run(contender, tuple(state["tiers"]), tuple(results), state["degraded_reason"])


def send_all(client: Client, phase: Phase, tick: Callable[[], None]) -> list[dict[str, Any]]:
    """Return the answers to the phase's requests, in order, keeping `concurrency` requests in flight.

    Raises the error of the first request that failed.
    """
    ask = partial(client.generate, max_new_tokens=phase.max_new_tokens, ignore_eos=True)
    return in_parallel(ask, phase.prompts, phase.concurrency, tick, TICK_SECONDS)


WARM_UP_TOKENS = 24


def measure_all(
    fleet: Fleet, policies: Sequence[str], phases: Sequence[Phase], warm_prompts: Sequence[str], progress: Progress
) -> list[Run]:
    """Return the runs, the one without speculation first."""
    todo = contenders(policies, held_on=policies[0])
    for contender in todo:
        if contender.forced_steps is None:
            progress.now(f"warming up: {contender.title}")
            with under(fleet, contender) as server:
                _warm_up(server, warm_prompts, progress)
    progress.done("warmed up")
    runs: list[Run] = []
    for number, contender in enumerate(todo, 1):
        label = f"{contender.title} ({number} of {len(todo)})"
        with under(fleet, contender) as server:
            results = []
            for phase in phases:
                requests = "1 request" if phase.concurrency == 1 else f"{phase.concurrency} requests"
                show = partial(progress.now, f"{label}: {phase.family} text, {requests} at a time")
                results.append(measure_phase(server, phase, partial(send_all, server, phase), show))
            if contender.forced_steps is not None:
                force_steps(server, None)
            runs.append(finished(server, contender, results))
        progress.done(f"{label}: {tokens_per_second(runs[-1].phases):.0f} tokens/s")
    return runs


def _warm_up(server: CpuServer, prompts: Sequence[str], progress: Progress) -> None:
    """Generate some tokens at all steps and concurrencies, so that no measured request is the first of its kind."""
    state = adaptive_state(server)
    # At last nothing is held: a release takes effect at the next round, which must not be counted.
    for depth in (None,) if state is None else (*state["tiers"], None):
        if state is not None:
            force_steps(server, depth)
        for concurrency in (1, SEVERAL):
            phase = Phase("warm-up", "mixed", concurrency, tuple(prompts[:concurrency]), WARM_UP_TOKENS)
            send_all(server, phase, lambda: progress.now("warming up"))


@contextmanager
def under(fleet: Fleet, contender: Contender) -> Iterator[CpuServer]:
    """Yield the server of *contender*, which holds its fixed steps from here on.

    An error becomes a DemoError: one line and the end of the server's log.
    """
    server, title = fleet[contender.server], contender.title
    try:
        if contender.forced_steps is not None:
            force_steps(server, contender.forced_steps)
        yield server
    except DemoError as error:
        raise DemoError(f"{title}: {error}", server.log_tail()) from error
    except (OSError, http.client.HTTPException, RequestError) as error:
        what = "" if server.is_running() else "the server exited; "
        raise DemoError(f"{title}: {what}{type(error).__name__}: {error}", server.log_tail()) from error
