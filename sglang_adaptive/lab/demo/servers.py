"""The demo's servers: their arguments, and how they start and stop together."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from sglang_adaptive.command_line import StopSignals
from sglang_adaptive.lab.cpu_engine.server import POLL_SECONDS, CpuServer, ServerError
from sglang_adaptive.lab.demo.results import Contender, DemoError
from sglang_adaptive.lab.demo.terminal import Progress
from sglang_adaptive.lab.models.smollm2 import speculation
from sglang_adaptive.serve_cpu import LaunchError

PLAIN, HELD = "none", "static"
"""Keys of the server without speculation, and of one that only holds fixed steps."""

TITLES = {"ema": "EMA", "throughput": "throughput", "lookups": "with lookups"}
"""Policies that the demo can show, in table order."""

STATIC_DEPTHS = (1, 3, 7)
"""Fixed steps; the server of every policy has all of them."""

CONFIGS = {
    "ema": {"policy": "ema", "1": {"candidate_steps": list(STATIC_DEPTHS)}},
    "lookups": {"policy": "throughput", "throughput": {"lookup": True}},
    **{key: {"policy": "throughput", "throughput": {"lookup": False}} for key in ("throughput", HELD)},
}


NAMES = {PLAIN: "no speculation", HELD: "static depths", **TITLES}
"""What the demo calls its servers."""


def launches(plain: Sequence[str], draft: Path | str, keys: Sequence[str], folder: Path) -> dict[str, Sequence[str]]:
    """Return the arguments of one server without a draft, *plain*, and an adaptive one per key, configured in *folder*.

    They are SGLang's own, as a user would give them.
    """
    found = {PLAIN: plain}
    for key in keys:
        config = folder / f"{key}.json"
        config.write_text(json.dumps(CONFIGS[key]) + "\n", encoding="utf-8")
        found[key] = (*plain, *speculation(draft, config))
    return found


def contenders(policies: Sequence[str], held_on: str) -> list[Contender]:
    """Return the contenders in measuring order; fixed steps are held on the server *held_on*.

    Adaptive runs come first, because holding steps on a policy's server changes that policy's state.
    """
    adaptive = [Contender(TITLES[policy], policy, adaptive=True) for policy in policies]
    static = [Contender(f"static {depth}", held_on, depth) for depth in STATIC_DEPTHS]
    return [Contender(NAMES[PLAIN], PLAIN), *adaptive, *static]


class Fleet:
    """Starts the servers with these *arguments* together and stops them together on exit, even after an error.

    Logs and caches are in *folder*, so that no server reads an earlier profile.
    """

    def __init__(
        self, arguments: Mapping[str, Sequence[str]], folder: Path, signals: StopSignals, progress: Progress
    ) -> None:
        self._stages = dict.fromkeys(arguments, "starting")
        self._signals = signals
        self._progress = progress
        try:
            self._servers = {
                key: CpuServer(
                    given,
                    log=folder / f"{key}.log",
                    extra_environment={"XDG_CACHE_HOME": str(folder / "cache")},
                    on_progress=partial(self._stages.__setitem__, key),
                )
                for key, given in arguments.items()
            }
        except (LaunchError, ServerError) as error:
            raise DemoError(str(error)) from error

    def __getitem__(self, key: str) -> CpuServer:
        return self._servers[key]

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.now("stopping the servers")
        with self._signals.held(), ThreadPoolExecutor(len(self._servers)) as pool:
            list(pool.map(CpuServer.stop, self._servers.values()))
        self._progress.clear()

    def boot(self) -> None:
        """Start all servers and wait for them. Raises DemoError when one does not start."""
        names = ", ".join(NAMES[key] for key in self._servers)
        self._progress.done(f"starting {len(self._servers)} servers: {names}")
        for server in self._servers.values():
            with self._signals.held():
                server.launch()
        starting = dict(self._servers)
        while starting:
            for key in [key for key in starting if self._is_ready(key)]:
                del starting[key]
                self._progress.done(f"{NAMES[key]}: ready")
            if starting:
                states = (f"{NAMES[key]}: {self._stages[key]}" for key in starting)
                self._progress.now("; ".join(states))
                time.sleep(POLL_SECONDS)

    def keep(self, key: str) -> int:
        """Leave one server running; return the id of the process that the user has to end."""
        return self._servers.pop(key).leave_running()

    def _is_ready(self, key: str) -> bool:
        try:
            return self._servers[key].poll()
        except ServerError as error:
            what, _, detail = str(error).partition("\n")
            raise DemoError(f"{NAMES[key]}: {what.rstrip(':')}", detail) from error
