"""Servers that share a profile folder, which one cannot write to and in which another finds the disk full."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from sglang_adaptive.lab.cpu_engine.server import CpuServer
from tests.campaign import asking
from tests.campaign.counts import check_idle, check_log
from tests.campaign.record import Unit
from tests.campaign.servers import profiled

STAGE = "profile folders"


def run(unit: Unit, plain: CpuServer, folder: Path) -> None:
    """Run three servers on one folder, which one of them cannot write to; for another the disk is full."""
    draw = unit.random()
    shared = folder / f"profiles-{unit.index}"
    shared.mkdir(parents=True, exist_ok=True)
    servers = {name: profiled(folder, f"profiled-{name}", shared) for name in ("sound", "read-only", "full")}
    mounts = {
        "read-only": f"mount --bind {shared} {shared} && mount -o remount,bind,ro {shared}",
        "full": f"mount -t tmpfs -o size=4k none {shared} && head -c 4096 /dev/zero > {shared}/full",
    }
    if _can_mount():
        for name, mount in mounts.items():
            servers[name].command = [*_UNSHARE, "sh", "-c", f'{mount} && exec "$@"', "sh", *servers[name].command]
    else:
        unit.figures["left out"] = "folders that are read-only or full: no right to mount"
    try:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(CpuServer.start, servers.values()))
        for name, server in servers.items():
            asking.compare(unit, plain, server, draw.sample(asking.questions(draw, 1), 12))
            check_idle(unit, server, server)
            unit.tried[f"a server with a profile folder that is {name}"] += 1
    finally:
        logs = {}
        for name, server in servers.items():
            server.stop()
            logs[name] = server.log_path.read_text()
    for name, log in logs.items():
        check_log(unit, log, stock=plain.log_path.read_text())
        unit.check("set aside" not in log, "no profile is set aside", name)
    shutil.rmtree(shared)


_UNSHARE = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-rm"]


def _can_mount() -> bool:
    with tempfile.TemporaryDirectory() as place:
        command = [*_UNSHARE, "mount", "-t", "tmpfs", "-o", "size=4k", "none", place]
        try:
            return subprocess.run(command, capture_output=True, check=False).returncode == 0
        except FileNotFoundError:
            return False
