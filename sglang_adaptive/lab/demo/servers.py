"""The servers of the demo: their arguments, and how they start and stop together."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from sglang_adaptive.lab.cpu_engine.server import POLL_SECONDS, CpuServer, ServerError
from sglang_adaptive.lab.demo.progress import Progress
from sglang_adaptive.lab.demo.results import Contender, DemoError
from sglang_adaptive.serve_cpu import LaunchError
from sglang_adaptive.signals import StopSignals

PLAIN = "none"
TITLES = {"ema": "EMA", "throughput": "throughput", "lookups": "with lookups"}
"""Policies that the demo can show, in the order of its tables."""

STATIC_DEPTHS = (1, 3, 7)
LAUNCH_STEPS = 3
CONFIGS = {
    "ema": {"policy": "ema", "1": {"candidate_steps": list(STATIC_DEPTHS)}},
    "throughput": {"policy": "throughput"},
    "lookups": {"policy": "throughput", "throughput": {"lookup": True}},
}


@dataclass(frozen=True, slots=True)
class ServerSpec:
    """One server to start: SGLang's own arguments, as a user would give them."""

    key: str
    title: str
    arguments: tuple[str, ...]


def server_specs(policies: Sequence[str], target: str, draft: str, folder: Path) -> list[ServerSpec]:
    """Return one server without speculation and one for each policy, whose config is written to *folder*."""
    model = ("--model-path", target, "--served-model-name", "tiny")
    specs = [ServerSpec(PLAIN, "no speculation", model)]
    for policy in policies:
        config = folder / f"{policy}.json"
        config.write_text(json.dumps(CONFIGS[policy]) + "\n", encoding="utf-8")
        specs.append(ServerSpec(policy, TITLES[policy], (*model, *_speculation(draft, config))))
    return specs


def contenders(policies: Sequence[str], tiers: Sequence[int]) -> list[Contender]:
    """Return the contenders in measuring order; *tiers* are the steps of the first policy's server.

    Adaptive runs come before fixed steps, which are held on one of the same servers and would change the state of its
    policy.
    """
    adaptive = [Contender(policy, TITLES[policy], policy, adaptive=True) for policy in policies]
    held = [depth for depth in STATIC_DEPTHS if depth in tiers] or [depth for depth in tiers if depth]
    static = [Contender(f"static-{depth}", f"static {depth}", policies[0], depth) for depth in held]
    return [Contender(PLAIN, "no speculation", PLAIN), *adaptive, *static]


def _speculation(draft: str, config: Path) -> tuple[str, ...]:
    return (
        "--speculative-algorithm", "EAGLE3",
        "--speculative-draft-model-path", draft,
        "--speculative-eagle-topk", "1",
        "--speculative-num-steps", str(LAUNCH_STEPS),
        "--speculative-num-draft-tokens", str(LAUNCH_STEPS + 1),
        "--speculative-adaptive-config", str(config),
    )  # fmt: skip


# Starts the demo's servers together, and stops them together, also after an error.


LONGEST_TEMPORARY = 80
"""Folder of SGLang's sockets; the path of a socket may have 107 characters."""


class Fleet:
    """Context manager around the servers of *specs*; logs and caches go to *folder*."""

    def __init__(self, specs: Sequence[ServerSpec], folder: Path, signals: StopSignals, progress: Progress) -> None:
        self._titles = {spec.key: spec.title for spec in specs}
        self._stages = dict.fromkeys(self._titles, "starting")
        self._signals = signals
        self._progress = progress
        try:
            self._servers = {spec.key: self._server(spec, folder) for spec in specs}
        except LaunchError as error:
            raise DemoError(str(error)) from error

    def __getitem__(self, key: str) -> CpuServer:
        return self._servers[key]

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._progress.now("stopping the servers")
        with self._signals.held(), ThreadPoolExecutor(len(self._servers)) as pool:
            list(pool.map(CpuServer.stop, self._servers.values()))
        self._progress.clear()

    def boot(self) -> None:
        """Start every server and wait for all. Raises DemoError when one does not start."""
        self._progress.done(f"starting {len(self._servers)} servers: {', '.join(self._titles.values())}")
        for server in self._servers.values():
            with self._signals.held():
                server.launch()
        starting = dict(self._servers)
        while starting:
            for key in [key for key in starting if self._is_ready(key)]:
                del starting[key]
                self._progress.done(f"{self._titles[key]}: ready")
            if starting:
                states = (f"{self._titles[key]}: {self._stages[key]}" for key in starting)
                self._progress.now("; ".join(states))
                time.sleep(POLL_SECONDS)

    def keep(self, key: str) -> int:
        """Leave one server running; return the id of the process that the user has to end."""
        return self._servers.pop(key).leave_running()

    def _server(self, spec: ServerSpec, folder: Path) -> CpuServer:
        def reached(stage: str, seconds: float) -> None:
            self._stages[spec.key] = stage

        return CpuServer(
            spec.arguments,
            log=folder / f"{spec.key}.log",
            extra_environment=_own_places(folder),
            on_progress=reached,
        )

    def _is_ready(self, key: str) -> bool:
        try:
            return self._servers[key].poll()
        except ServerError as error:
            what, _, detail = str(error).partition("\n")
            raise DemoError(f"{self._titles[key]}: {what.rstrip(':')}", detail) from error


def _own_places(folder: Path) -> dict[str, str]:
    """Return variables that keep a server's files in *folder*, so that it reads no profile of earlier servers."""
    places = {"XDG_CACHE_HOME": str(folder / "cache")}
    if len(str(folder)) <= LONGEST_TEMPORARY:
        places["TMPDIR"] = str(folder)
    return places
