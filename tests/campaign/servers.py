"""The servers of a campaign: one without speculation, and one that adapts, is checked, and has a key."""

from __future__ import annotations

from pathlib import Path

from sglang_adaptive.client import Client
from sglang_adaptive.cpu_engine.server import CpuServer
from tests.engine import servers as engine

ADMIN_KEY = engine.ADMIN_KEY
LENGTH = 2048
"""Longest context of the tiny pair that the servers take."""
POOL = 3000
"""KV slots of the adapting server: few enough that requests are retracted."""
JUMPY = {"policy": "ema", "watch": True, "1": engine.JUMPY_SLOT | {"candidate_steps": [0, 1, 3, 7]}}

_SAME = ("--context-length", str(LENGTH), "--enable-priority-scheduling", "--allow-auto-truncate")


def plain(folder: Path) -> CpuServer:
    """No speculation: what the other's greedy answers have to be."""
    return engine._server(folder, "campaign-plain", *_SAME)


def adapting(folder: Path) -> CpuServer:
    """The EMA policy at every depth, a small pool, SGLang's own checks of its accounts after every round."""
    config = engine._config(folder, "campaign", JUMPY)
    few = ("--max-total-tokens", str(POOL), "--max-running-requests", "8", "--page-size", "4")
    return engine._server(
        folder,
        "campaign-adapting",
        *engine._speculation("--speculative-adaptive-config", config, "--speculative-num-steps", "3"),
        *(*_SAME, *few, "--admin-api-key", ADMIN_KEY, "--enable-metrics", "--enable-mixed-chunk"),
        **engine._CHECKED,
    )


def operator(server: CpuServer) -> Client:
    """Return a client of *server* with the administrator's key."""
    return Client.from_url(server.url, api_key=ADMIN_KEY)
