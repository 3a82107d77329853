"""The servers of both scenes, all started together on one device and left running between commands."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.served import hook_times
from benchmarks.server import hosts
from benchmarks.server.policies import POLICIES, Policy
from benchmarks.server.replayed import TRACE_FILE
from benchmarks.server.servers import Running, Server, attach
from benchmarks.server.starting import NotStarted

SMOLLM2, REPLAY = "smollm2", "replay"
SCENES = {
    SMOLLM2: ("none", "static-1", "static-2", "static-3", "static-5", "static-7", "sglang-ema", "throughput"),
    REPLAY: ("none", "sglang-ema", "throughput"),
}
"""By scene, who takes part. In the replay the static depths are held on our server: a server takes 35 GB there."""

TIMED = "throughput-timed"
"""Our server once more, with a clock around each of our hooks; it takes part in no comparison."""

BUDGET = "budget-"
"""With a number of drafts: our server with that verify budget, forced."""

BUDGETS = "throughput-budgets"
"""Our server with budgets that the policy chooses. A large target leaves room for one server: this one also holds
depths and pairs of steps and budget, and runs without budgets by another configuration."""

TRACE = Path(__file__).parents[1] / "traces" / "smollm2-greedy.npz"


@dataclass(frozen=True)
class RealGpu(hosts.Gpu):
    """One CUDA device and real weights, in bfloat16."""

    def _weights(self) -> Sequence[str]:
        return ("--dtype", "bfloat16")


@dataclass(frozen=True)
class Place:
    """Where a scene's servers run, and what their command line is made of."""

    scene: str
    host: str
    models: Path
    work: Path
    batch: int = 64
    """Most requests at a time."""

    kv_tokens: int = 150_000
    extra: tuple[str, ...] = ()
    pair: str = "llama8b"
    """Shapes of the replay's target and draft (benchmarks/server/shapes.py)."""

    @property
    def folder(self) -> Path:
        """Logs and what is needed to find the servers again."""
        return self.work / self.scene

    @property
    def target(self) -> Path:
        """SmolLM2's folder."""
        return self.models / "smollm2" / "target"

    def build(self) -> hosts.Host:
        """Return the host; its idle schedulers sleep, because nine that poll would fill the CPU."""
        extra = ("--sleep-on-idle", *self.extra)
        if self.scene == REPLAY:
            if self.host == "cpu":
                return hosts.cpu(self.batch, extra=extra, prefix_cache=True)
            return hosts.gpu(
                self.models, self.batch, self.pair, extra=extra, prefix_cache=True, kv_tokens=self.kv_tokens
            )
        pair = (str(self.target), str(self.target.parent / "draft"))
        if self.host == "cpu":
            return hosts.Cpu(*pair, self.batch, ("--skip-tokenizer-init", *extra))
        return RealGpu(*pair, self.batch, extra, kv_tokens=self.kv_tokens)


def policy(name: str, folder: Path) -> Policy:
    """Return what a contender is started with. Raises KeyError for another name."""
    if name.startswith(BUDGET):
        variables = {"SGLANG_ADAPTIVE_VERIFY_BUDGET": name.removeprefix(BUDGET)}
        return replace(POLICIES["throughput"], name=name, variables=variables)
    if name != TIMED:
        return POLICIES[name]
    return replace(POLICIES["throughput"], name=TIMED, variables={hook_times.FILE: str(folder / "hook-times")})


def start(place: Place, names: Sequence[str], end: float) -> int:
    """Start all servers at once; one that fails is started once more. Leaves those that came up running.

    Returns how many did not.
    """
    place.folder.mkdir(parents=True, exist_ok=True)
    if place.scene == REPLAY:
        os.environ[TRACE_FILE] = str(TRACE)
    waiting = {name: (_launch(place, name), 1) for name in names}
    failed = []
    while waiting:
        for name, (server, attempt) in list(waiting.items()):
            try:
                server.wait(min(time.monotonic() + 0.3, end))
            except NotStarted as problem:
                if time.monotonic() < end and server.is_running():
                    continue
                print(f"{name}, attempt {attempt}: {problem}", file=sys.stderr, flush=True)
                server.stop()
                if attempt == 1 and time.monotonic() < end:
                    waiting[name] = (_launch(place, name), 2)
                    continue
                failed.append(name)
            else:
                server.alone = len(names) == 1
                server.leave()
                print(f"  {name} ready after {server.start_seconds:.1f} s", flush=True)
            del waiting[name]
    print(f"{place.scene}: {len(names) - len(failed)} of {len(names)} servers", flush=True)
    return len(failed)


def _launch(place: Place, name: str) -> Server:
    # Stock schedulers and ours alike count their rounds; acceptance is simulated in the replay alone.
    own = policy(name, place.folder)
    server = Server(own, place.build(), place.folder, place.folder / "profiles", place.scene == REPLAY)
    server.launch()
    return server


def attached(place: Place, names: Sequence[str]) -> list[Running]:
    """Return those of *names* that were left running and still are; says which are not."""
    found = []
    for name in names:
        try:
            server = attach(policy(name, place.folder), place.folder)
        except ValueError as problem:
            print(f"  without {name}: {problem}", flush=True)
            continue
        if server.is_running():
            found.append(server)
        else:
            print(f"  without {name}: it has ended; {server.log_tail(5)}", flush=True)
    return found


def stop(place: Place) -> None:
    """Stop every server of the scene that was left running."""
    for record in place.folder.glob("*.running"):
        attach(policy(record.stem, place.folder), place.folder).stop()
        print(f"stopped {record.stem}", flush=True)
