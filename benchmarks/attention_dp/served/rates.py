"""Tokens a second of both ranks together: the policy, each number of steps held on the same server, no speculation.

Under constant load a figure is the sum over the ranks of tokens over seconds of decode rounds that follow another one,
both with all of the rank's requests: no prefill on either rank, no round with a place free. Under changing load it is
all tokens over all seconds. Tokens are those that the rounds yield on average under the declared acceptance.

The policy runs for a while that counts for nothing before it is measured, so that it has learnt this load. In the first
pass that is all that it knows of a load; in the second it comes after held steps, whose rounds teach it too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from benchmarks.attention_dp.served.agreement import HUNG_SECONDS, Hung
from benchmarks.server.load import ClosedLoop
from benchmarks.server.process import DEEPEST, Counted, Declared, Process
from benchmarks.server.ranks import file_of
from benchmarks.server.servers import Server

POLICY, HELD, CHANGE = "policy", "static-", "changing"
SETTLED = 10
"""Rounds that a contender has run at one depth before it is measured."""
Keep = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Scene:
    """A load: requests of each rank, and P(a draft is accepted | those before it were)."""

    name: str
    requests: tuple[int, int]
    acceptance: float


CONSTANT = (
    Scene("balanced, 4 each", (4, 4), 0.8),
    Scene("balanced, 32 each", (32, 32), 0.6),
    Scene("skewed, 48 and 4", (48, 4), 0.7),
    Scene("skewed, 4 and 32, hard text", (4, 32), 0.35),
    Scene("one idle", (16, 0), 0.75),
)
CHANGING = (
    Scene("few, easy text", (2, 2), 0.9),
    Scene("many, hard text", (48, 48), 0.25),
    Scene("one busy", (32, 1), 0.75),
    Scene("one idle, hard text", (0, 4), 0.4),
)


@dataclass(frozen=True)
class Times:
    """Seconds of the parts of a measurement."""

    window: float = 1.2
    learn: float = 2.5
    """For the policy, before it is measured."""

    settle: float = 0.3
    phase: float = 2.0
    tokens: int = 2000
    """New tokens of a request."""


class Rated:
    """A server whose rates are measured, with the files that its ranks count into."""

    def __init__(self, server: Server, times: Times, deadline: float) -> None:
        self._server, self._times, self._deadline = server, times, deadline
        self._files = [Process(file_of(server.process.path, rank)) for rank in (0, 1)]

    def constant(self, scenes: Sequence[Scene], contenders: Sequence[str], keep: Keep) -> None:
        """Measure each of *contenders* in each scene; *keep* gets each rate."""
        for scene in scenes:
            with self._load(scene.requests) as _:
                self._declare(scene)
                for name in contenders:
                    if time.monotonic() > self._deadline:
                        return
                    self._settle(name)
                    keep({"scene": scene.name, "contender": name, **self._window(scene)})

    def changing(self, scenes: Sequence[Scene], contenders: Sequence[str], keep: Keep) -> None:
        """Measure each of *contenders* over all *scenes* in turn; *keep* gets each rate."""
        with self._load(scenes[-1].requests) as loops:
            for name in contenders:
                self.hold(name)
                before, begin = self._read(), time.monotonic()
                for scene in scenes:
                    if time.monotonic() > self._deadline:
                        return
                    self._declare(scene)
                    for loop, many in zip(loops, scene.requests, strict=True):
                        loop.resize(many)
                    time.sleep(self._times.phase)
                seconds = time.monotonic() - begin
                spent = [now - then for now, then in zip(self._read(), before, strict=True)]
                if not sum(each.rounds for each in spent):
                    raise Hung(f"no round in {seconds:.0f} s")
                keep({
                    "scene": CHANGE, "contender": name, "seconds": seconds,
                    "tokens_per_second": sum(each.expected for each in spent) / seconds,
                    "depths": spent[0].depths(), "switches": spent[0].switches,
                })  # fmt: skip

    def _settle(self, name: str) -> None:
        """Let *name* run until its kernels are loaded and, if it is the policy, it knows the load."""
        self.hold(name)
        before = self._read()
        time.sleep(self._times.learn if name == POLICY else self._times.settle)
        self._wait_for(lambda: any(
            (now - then).rounds_by_depth[steps] >= SETTLED
            for now, then in zip(self._read(), before, strict=True)
            for steps in _depths(name)
        ))  # fmt: skip

    def hold(self, name: str) -> None:
        """Hold the steps that *name* stands for, or release them for the policy; a server without any needs neither."""
        if self._server.policy.ours:
            self._server.force(None if name == POLICY else _depths(name)[0])

    @contextmanager
    def _load(self, requests: Sequence[int]) -> Iterator[list[ClosedLoop]]:
        client, tokens = self._server.client, self._times.tokens
        with ExitStack() as stack:
            loops = [
                stack.enter_context(ClosedLoop(client, many, tokens, seed=rank + 1, rank=rank))
                for rank, many in enumerate(requests)
            ]
            self._wait_for(lambda: all(
                file.read().batch_size >= many - many // 8 for file, many in zip(self._files, requests, strict=True)
            ))  # fmt: skip
            yield loops
            errors = [error for loop in loops for error in loop.errors]
            if errors:
                raise OSError(f"{len(errors)} requests failed: {errors[0]}")

    def _declare(self, scene: Scene) -> None:
        self._server.process.declared = Declared(scene.acceptance)
        for file, many in zip(self._files, scene.requests, strict=True):
            file.full_batch = many

    def _window(self, scene: Scene) -> dict[str, Any]:
        before, begin = self._read(), time.monotonic()
        time.sleep(self._times.window)
        at = max((0, 1), key=lambda rank: scene.requests[rank])
        self._wait_for(lambda: self._files[at].read().steady_rounds > before[at].steady_rounds + 20)
        spent = [now - then for now, then in zip(self._read(), before, strict=True)]
        seconds = time.monotonic() - begin
        busy = [each for each in spent if each.steady_seconds]
        return {
            "seconds": seconds,
            "tokens_per_second": sum(each.steady_expected / each.steady_seconds for each in busy),
            "wall_tokens_per_second": sum(each.expected for each in spent) / seconds,
            "round_seconds": spent[at].steady_seconds / spent[at].steady_rounds,
            "steady_rounds": [each.steady_rounds for each in spent],
            "depths": spent[at].depths(),
            "switches": spent[at].switches,
        }

    def _read(self) -> list[Counted]:
        return [file.read() for file in self._files]

    def _wait_for(self, there: Callable[[], bool]) -> None:
        begin = time.monotonic()
        while not there():
            if time.monotonic() - begin > HUNG_SECONDS:
                raise Hung(f"not so after {HUNG_SECONDS:.0f} s: the load, or rounds under it")
            time.sleep(0.02)


def _depths(name: str) -> Sequence[int]:
    """Return the depths that a contender may run; a round without speculation is one of depth 0."""
    return [int(name.removeprefix(HELD))] if name.startswith(HELD) else range(DEEPEST + 1)


def ratios(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return each scene's mean rates by contender, and the policy's over that of the best number of steps.

    ``spread`` is the mean difference of a contender's two rates, over their mean.
    """
    found: dict[str, Any] = {}
    for scene in dict.fromkeys(row["scene"] for row in rows):
        rates: dict[str, list[float]] = {}
        for row in (row for row in rows if row["scene"] == scene):
            rates.setdefault(row["contender"], []).append(row["tokens_per_second"])
        means = {name: sum(each) / len(each) for name, each in rates.items()}
        static = {name: rate for name, rate in means.items() if name.startswith(HELD)}
        found[scene] = {"tokens_per_second": means}
        twice = [abs(two[0] - two[1]) / means[name] for name, two in rates.items() if len(two) == 2]
        if twice:
            found[scene]["spread"] = sum(twice) / len(twice)
        if static and POLICY in means:
            best = max(static, key=lambda name: static[name])
            found[scene] |= {"best": best, "policy_over_best": means[POLICY] / static[best]}
        if "none" in means and POLICY in means:
            found[scene]["policy_over_none"] = means[POLICY] / means["none"]
    return found


def best_held(rows: Sequence[dict[str, Any]], scene: str, many: int) -> list[str]:
    """Return the names of the *many* held steps with the highest rates in *scene*, the best first."""
    rates = {row["contender"]: row["tokens_per_second"] for row in rows if row["scene"] == scene}
    held = [name for name in rates if name.startswith(HELD)]
    return sorted(held, key=lambda name: -rates[name])[:many]
