"""Requests of the tests, and the state of a server seen from outside."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import psutil

from sglang_adaptive.client import Client
from sglang_adaptive.lab.cpu_engine.server import CpuServer

DEADLINE = 240.0
"""Seconds after which a wait fails; an idle machine needs a few at most."""

POLL_SECONDS, LONGEST_POLL_SECONDS = 0.02, 0.15
"""A poll costs the server 20 ms of a core, so a long wait polls less and less often."""

SWITCHES = 40
"""Minimum depth switches for a test of unchanged output."""


@dataclass(frozen=True)
class Case:
    """One greedy request."""

    prompt: str | tuple[int, ...]
    max_new_tokens: int = 48
    sampling: dict[str, Any] = field(default_factory=lambda: {"ignore_eos": True})

    def whole(self, server: Client, rid: str | None = None) -> dict[str, Any]:
        """Return the answer of a request that does not stream."""
        answer: dict[str, Any] = server.generate(self._prompt(), self.max_new_tokens, rid=rid, **self.sampling)
        return answer

    def stream(self, server: Client, rid: str | None = None) -> Iterator[dict[str, Any]]:
        """Yield the parts of a streamed answer."""
        return server.stream(self._prompt(), self.max_new_tokens, rid=rid, **self.sampling)

    def _prompt(self) -> str | list[int]:
        return self.prompt if isinstance(self.prompt, str) else list(self.prompt)


@dataclass(frozen=True)
class Output:
    """The parts of an answer that must not depend on speculation."""

    ids: tuple[int, ...]
    text: str
    finish: str
    completion_tokens: int

    @classmethod
    def of(cls, answer: dict[str, Any]) -> Output:
        """Read one answer of /generate."""
        meta = answer["meta_info"]
        return cls(tuple(answer["output_ids"]), answer["text"], str(meta["finish_reason"]), meta["completion_tokens"])


Expected = Callable[[list[Case]], list[Output]]
"""Type of the fixture `expected`: it returns the outputs of cases without speculation."""


def answers(server: Client, cases: Sequence[Case], at_once: int) -> list[dict[str, Any]]:
    """Return the answers to *cases*, sent *at_once* at a time."""
    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(lambda case: case.whole(server), cases))


def run(server: Client, cases: Sequence[Case], at_once: int) -> list[Output]:
    """Return the outputs of *cases*, sent *at_once* at a time."""
    return list(map(Output.of, answers(server, cases, at_once)))


def run_together(server: Client, cases: Sequence[Case]) -> list[dict[str, Any]]:
    """Return the answers to *cases*, which the scheduler gets in one message, so that they decode together.

    SGLang tokenizes texts one by one and sends each before the next.
    """
    asked = [case.prompt if isinstance(case.prompt, tuple) else tokens(server, case.prompt) for case in cases]
    sampling = [{"temperature": 0, "max_new_tokens": case.max_new_tokens, **case.sampling} for case in cases]
    answers: list[dict[str, Any]] = server.post("/generate", {"input_ids": asked, "sampling_params": sampling})
    return answers


def tokens(server: Client, text: str) -> list[int]:
    """Return the token ids of *text* without a BOS token."""
    asked = {"model": "tiny", "prompt": text, "add_special_tokens": False}
    found: list[int] = server.post("/tokenize", asked)["tokens"]
    return found


def internal_state(server: Client) -> dict[str, Any]:
    """Return the scheduler's internal state."""
    state: dict[str, Any] = server.server_info()["internal_states"][0]
    return state


def adaptive(server: Client) -> dict[str, Any]:
    """Return the adaptive part of the internal state."""
    part: dict[str, Any] = internal_state(server)["adaptive"]
    return part


def replica_states(server: Client) -> list[dict[str, Any]]:
    """Return the adaptive part of each replica's state, by rank."""
    return [state["adaptive"] for state in server.server_info()["internal_states"]]


def timeless(state: dict[str, Any]) -> dict[str, Any]:
    """Return the adaptive part of a state without the speedup, which changes with time."""
    return {key: value for key, value in state.items() if key != "speedup"}


def rounds(server: Client) -> int:
    """Return how many rounds were verified so far, over all depths."""
    return sum(adaptive(server)["rounds_by_tier"].values())


def grown(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """Return the nonzero increases of counts by depth."""
    return {tier: count - before.get(tier, 0) for tier, count in after.items() if count > before.get(tier, 0)}


@contextmanager
def meanwhile(*acts: Callable[[], object]) -> Iterator[None]:
    """Call each of *acts* again and again, in a thread of its own, until the block ends."""
    done = threading.Event()

    def repeat(act: Callable[[], object]) -> None:
        while not done.is_set():
            act()

    with ThreadPoolExecutor(len(acts)) as pool:
        running = [pool.submit(repeat, act) for act in acts]
        try:
            yield
        finally:
            done.set()
    for one in running:
        one.result()


def decoding(server: Client, prompts: Sequence[str], requests: int = 1) -> AbstractContextManager[None]:
    """Decode *prompts* in turn, *requests* at a time, until the block ends."""

    def asking(begin: int) -> Callable[[], object]:
        turn = itertools.cycle([*prompts[begin:], *prompts[:begin]])
        return lambda: Case(next(turn), max_new_tokens=24).whole(server)

    return meanwhile(*map(asking, range(requests)))


@contextmanager
def rotating_depth(server: Client) -> Iterator[None]:
    """Force one depth after the other, as fast as the server accepts them, until the block ends; then release."""
    tiers = itertools.cycle(adaptive(server)["tiers"])
    try:
        with meanwhile(lambda: server.force_steps(next(tiers))):
            yield
    finally:
        server.force_steps(None)


def require_while_switching(
    server: CpuServer,
    cases: Sequence[Case],
    wanted: Sequence[Output],
    at_once: int,
    *,
    positions: Callable[[Iterable[int]], bool] = any,
) -> None:
    """Fail unless the server gives *cases* the outputs *wanted* while its depth keeps changing.

    Continues until it has switched SWITCHES times, rounds ran at every depth, and drafts were correct at any or all
    *positions*.
    """
    before = adaptive(server)
    while True:
        with rotating_depth(server):
            assert run(server, cases, at_once) == wanted
        require_whole_pool(server)
        now = adaptive(server)
        ran = set(map(int, grown(before["rounds_by_tier"], now["rounds_by_tier"])))
        right = positions(position["accepted"] for position in now["accepted_by_position"])
        if now["switches"] - before["switches"] >= SWITCHES and ran == set(now["tiers"]) and right:
            break
    assert not now["degraded"]


@contextmanager
def kept(server: CpuServer) -> Iterator[dict[str, Any]]:
    """Yield the active configuration, and restore it afterwards."""
    before: dict[str, Any] = adaptive(server)["config"]
    try:
        yield before
    finally:
        server.configure(before)


def wait_until(condition: Callable[[], Any], what: str) -> Any:
    """Return the first true value of *condition*; fail after DEADLINE."""
    end, pause = time.monotonic() + DEADLINE, POLL_SECONDS
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(pause)
        pause = min(1.3 * pause, LONGEST_POLL_SECONDS)
    raise AssertionError(f"waited {DEADLINE:.0f} s in vain until {what}")


def has_ended(process: psutil.Process) -> bool:
    """Whether *process* is gone or a zombie."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def wait_until_idle(server: CpuServer) -> dict[str, Any]:
    """Return the load that *server* publishes once no request runs or waits; such a server has counted its slots."""
    since = time.time()

    def idle_load() -> dict[str, Any] | None:
        assert server.is_running(), f"the server died:\n{server.log_tail()}"
        server.server_info()  # an idle scheduler checks itself once a second and after every message
        load: dict[str, Any] = server.get("/v1/loads")["loads"][0]
        idle = load["timestamp"] > since and load["num_running_reqs"] == load["num_waiting_reqs"] == 0
        return load if idle else None

    return wait_until(idle_load, "the server is idle")  # type: ignore[no-any-return]


def require_whole_pool(server: CpuServer) -> None:
    """Fail unless every KV slot of the idle server is free or held by the prefix cache.

    An idle scheduler counts its slots and dies if one is missing. So a later load that counts no slot
    as used means free + held == pool size.
    """
    load = wait_until_idle(server)
    assert load["num_used_tokens"] == 0, f"{load['num_used_tokens']} of {load['max_total_num_tokens']} slots lost"
