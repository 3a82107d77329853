"""The servers of a campaign: one without speculation, and adaptive ones with internal checks and a key."""

from __future__ import annotations

from pathlib import Path

from sglang_adaptive.lab.cpu_engine.server import CpuServer
from tests.campaign import gpu
from tests.engine import servers as engine
from tests.forked_servers import ForkedServer

ADMIN_KEY = engine.ADMIN_KEY
LENGTH = 2048
"""Longest context of the tiny pair that the servers accept."""
POOL = 3000
"""KV slots of the adaptive server: few enough that requests are retracted."""
JUMPY = {"policy": "ema", "watch": True, "1": engine.JUMPY_SLOT | {"candidate_steps": [0, 1, 3, 7]}}
THROUGHPUT = {"throughput": {"candidate_steps": [0, 1, 3, 7], "sync_rounds": 4}}
DEEPEST = 7
COPYING = {"lookup": True, "lookup_memory_mb": 1}
LOOKUPS = {"watch": True, "throughput": {"candidate_steps": [0, 1, 3, 7], "sync_rounds": 4, **COPYING}}

_SAME = ("--context-length", str(LENGTH), "--enable-priority-scheduling", "--allow-auto-truncate")
SEEDED = ("--enable-deterministic-inference",)
_SMALL = (
    *("--max-total-tokens", str(POOL), "--max-running-requests", "8"),
    # Otherwise SGLang keeps so many slots for a request's answer that hardly any is retracted.
    *("--schedule-conservativeness", "0.3"),
)
MIXED, REMEMBERING = "small pool, mixed prefill", "small pool, lookups with a memory"
VARIANTS: dict[str, tuple[dict[str, object], tuple[str, ...]]] = {
    MIXED: (JUMPY, (*_SMALL, "--page-size", "4", "--enable-mixed-chunk")),
    REMEMBERING: (LOOKUPS, (*_SMALL, "--page-size", "4")),
    "small pool, rows of zero steps held back": (JUMPY, _SMALL),
    "radix cache off": (JUMPY, (*_SMALL, "--disable-radix-cache")),
    "throughput policy, large chunks": (THROUGHPUT, ("--chunked-prefill-size", "1024", "--page-size", "16")),
}
"""Each with a configuration and flags; every server runs every kind of request. A hierarchical cache needs a GPU."""


def plain(folder: Path, seeded: bool = False) -> CpuServer:
    """Return the reference server: no speculation, and no overlap, under which penalties lag.

    *seeded* is for requests with seeds.
    """
    name, more = ("campaign-plain-seeded", SEEDED) if seeded else ("campaign-plain", ())
    return _server(folder, name, *_SAME, *more, "--disable-overlap-schedule")


def adapting(folder: Path, variant: str = MIXED, *more: str) -> CpuServer:
    """Return a server that adapts at every depth, with SGLang's own accounting checks after every round.

    It has a key, which its own requests give; *more* are further flags, such as SEEDED.
    """
    content, flags = VARIANTS[variant]
    folder.mkdir(parents=True, exist_ok=True)
    adaptive = engine.adapting(folder, "campaign", content | {"warm_up": gpu.used})
    server = _server(
        folder,
        "campaign-adapting",
        *engine.speculation(*adaptive, "--speculative-num-steps", "3"),
        *(*_SAME, *flags, *more, "--admin-api-key", ADMIN_KEY, "--enable-metrics"),
        **engine.CHECKED,
    )
    server.api_key = ADMIN_KEY
    return server


def profiled(folder: Path) -> CpuServer:
    """Return a server of the throughput policy with its profiles in *folder*."""
    folder.mkdir(parents=True, exist_ok=True)
    options = {**THROUGHPUT["throughput"], "profile_dir": str(folder / "profiles")}  # type: ignore[dict-item]
    adaptive = engine.adapting(folder, "profiled", {"throughput": options, "warm_up": gpu.used})
    flags = (*engine.speculation(*adaptive), *_SAME)
    # When a scheduler is killed, SGLang waits a minute for CUDA core dumps.
    return _server(folder, "profiled", *flags, SGLANG_CUDA_COREDUMP_BEFORE_CRASH_WAIT_SECS="1")


def _server(folder: Path, name: str, *arguments: str, **variables: str) -> CpuServer:
    return engine.server(folder, name, *arguments, kind=gpu.GpuServer if gpu.used else ForkedServer, **variables)
