"""Warms up each server, then measures one contender at a time while the other servers are idle."""

from __future__ import annotations

import http.client
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from sglang_adaptive.client import RequestError
from sglang_adaptive.lab.cpu_engine.server import CpuServer
from sglang_adaptive.lab.demo.errors import DemoError
from sglang_adaptive.lab.demo.fleet import Fleet
from sglang_adaptive.lab.demo.measure import adaptive_state, force_steps, measure_phase, send_all
from sglang_adaptive.lab.demo.progress import Progress
from sglang_adaptive.lab.demo.results import Contender, PhaseResult, Run, tokens_per_second
from sglang_adaptive.lab.demo.servers import PLAIN, contenders
from sglang_adaptive.lab.demo.workload import SEVERAL, Phase

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
