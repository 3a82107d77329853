"""The machine that a benchmark runs on: its GPUs, its cores, and what keeps them busy."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

CORES_OF_A_GPU = 8
"""With fewer cores for each GPU than this, its servers are not bound to a share of the cores."""


def gpus_of_host() -> list[str]:
    """Return the GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    if visible := os.environ.get("CUDA_VISIBLE_DEVICES"):
        return visible.split(",")
    query = ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=True, timeout=30).stdout.split()
    except (OSError, subprocess.SubprocessError):
        return []


def cores_of(number: int, gpus: int) -> list[str]:
    """Return the words that bind a command to the cores of one of *gpus* GPUs; none if there is no need or no way."""
    cores = sorted(os.sched_getaffinity(0))
    share = len(cores) // gpus
    if gpus == 1 or share < CORES_OF_A_GPU or shutil.which("taskset") is None:
        return []
    return ["taskset", "-c", ",".join(map(str, cores[number * share : (number + 1) * share]))]


SPINNER = """
import os, sys, time
parent, end = os.getppid(), time.monotonic() + float(sys.argv[1])
while os.getppid() == parent and time.monotonic() < end:
    for _ in range(100_000):
        pass
"""
"""A process that keeps a core busy, and ends with its parent or after its time."""


@contextmanager
def every_core_busy(seconds: float) -> Iterator[None]:
    """Run as many spinning processes as this process has cores, at most *seconds* long."""
    spinning: list[subprocess.Popen[bytes]] = []
    try:
        for _ in os.sched_getaffinity(0):
            spinning.append(subprocess.Popen([sys.executable, "-S", "-c", SPINNER, str(seconds)]))
        yield
    finally:
        for one in spinning:
            one.kill()
        for one in spinning:
            one.wait()


@contextmanager
def locked(path: Path, until: float) -> Iterator[None]:
    """Hold the lock of *path*, which a command that starts the same servers may hold, at the latest from *until* on."""
    with path.open("a") as lock:
        while time.monotonic() < until:
            with suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            time.sleep(0.5)
        yield
