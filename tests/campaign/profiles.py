"""Profile folders that are read-only, full, corrupt, or shared by several servers, some of which are killed."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from sglang_adaptive.lab.cpu_engine.server import CpuServer
from tests.campaign import asking
from tests.campaign.counts import check_idle, check_log
from tests.campaign.record import Unit
from tests.campaign.servers import profiled

STAGE = "profile folders"
KEY = {"target_model": "t", "draft_model": "d", "gpu_name": "g", "attention_backend": "a"}
WRITERS, SECONDS = 3, 4.0
UNTIL = 30.0
"""Seconds within which a store must answer for any folder; half a second is typical."""

STORE = """
import sys, time
from pathlib import Path
from sglang_adaptive.policy.profile import CostProfile, ProfileCell, ProfileKey
from sglang_adaptive.runtime.profile_store import ProfileStore
key = ProfileKey(**{key!r}, gpu_count=1, tp_size=1, dtypes={{}}, versions={{}})
store, until, saved = ProfileStore(key, Path(sys.argv[1])), time.monotonic() + float(sys.argv[2]), 0
print(store.path, flush=True)
while True:
    known = store.load()
    cells = [ProfileCell(1 + saved % 8, steps, 0.01, 5) for steps in (0, 1, 3)]
    saved += store.save(CostProfile(key, tuple(cells)))
    if time.monotonic() >= until:
        break
print(saved)
"""

Make = Callable[[Path, random.Random], None]


def _bytes(make: Callable[[bytes, random.Random], bytes]) -> Make:
    return lambda path, draw: path.write_bytes(make(path.read_bytes(), draw)) and None


def _changed(data: bytes, draw: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(draw.randint(1, 8)):
        changed[draw.randrange(len(changed))] = draw.randrange(256)
    return bytes(changed)


def _instead(make: Callable[[Path], object]) -> Make:
    def put(path: Path, _: random.Random) -> None:
        path.unlink()
        make(path)

    return put


SPOILS: dict[str, Make] = {
    "some bytes changed": _bytes(_changed),
    "cut off": _bytes(lambda data, draw: data[: draw.randrange(len(data))]),
    "twice": _bytes(lambda data, _: data * 2),
    "2 MB": _bytes(lambda data, _: b" " * 2_000_000 + data),
    "chance": _bytes(lambda data, draw: draw.randbytes(500)),
    "numbers beyond float": _bytes(lambda data, _: data.replace(b"0.01", b"1e999")),
    "negative times": _bytes(lambda data, _: data.replace(b"0.01", b"-0.01")),
    "of another key": _bytes(lambda data, _: data.replace(b'"t"', b'"x"')),
    "nesting of 10^5": _bytes(lambda *_: b"[" * 100_000),
    "a folder": _instead(lambda path: path.mkdir()),
    "a FIFO": _instead(os.mkfifo),
    "a link to itself": _instead(lambda path: path.symlink_to(path.name)),
    "a link to a device": _instead(lambda path: path.symlink_to("/dev/zero")),
}


def run(unit: Unit, plain: CpuServer, folder: Path, short: bool = False) -> None:
    """Corrupt files, let writers share a folder, and then run three servers on a folder in three states."""
    draw = unit.random()
    for name, spoil in SPOILS.items():
        with tempfile.TemporaryDirectory() as place:
            _spoilt_file(unit, name, spoil, Path(place), draw)
    with tempfile.TemporaryDirectory() as place:
        _shared(unit, Path(place), draw)
    if not short:
        _three_servers(unit, plain, folder, draw)


def _store(folder: Path, seconds: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", STORE.format(key=KEY), str(folder), str(seconds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _end(unit: Unit, what: str, process: subprocess.Popen[str], seconds: float) -> list[str]:
    """Wait for a store to end; return what it printed, or count a loss if it fails."""
    try:
        said, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        unit.check(False, what, "no end")
        return []
    unit.check(process.returncode == 0 and "Traceback" not in errors, what, errors[-1500:])
    return said.splitlines()


def _spoilt_file(unit: Unit, name: str, spoil: Make, folder: Path, draw: random.Random) -> None:
    path = Path(_end(unit, "a profile is written", _store(folder, 0), UNTIL)[0])
    spoil(path, draw)
    _end(unit, f"a profile that is spoilt: {name}", _store(folder, 0), UNTIL)


def _shared(unit: Unit, folder: Path, draw: random.Random) -> None:
    """Several processes write one profile continuously, and some are killed; no reader may ever find a partial file."""
    writers = [_store(folder, SECONDS + UNTIL) for _ in range(WRITERS)]
    paths = {writer.stdout.readline().strip() for writer in writers if writer.stdout}
    until, read = time.monotonic() + SECONDS, 0
    (path,) = map(Path, paths)
    while time.monotonic() < until:
        if path.exists():
            try:
                json.loads(path.read_text())
                read += 1
            except ValueError as error:
                unit.lose("a shared profile is whole at any time", error)
        if draw.random() < 0.002:
            victim = draw.randrange(WRITERS)
            writers[victim].kill()
            writers[victim].communicate()
            writers[victim] = _store(folder, SECONDS + UNTIL)
            unit.tried["kill -9 of a process that writes a profile"] += 1
        time.sleep(0.001)
    unit.tried["a shared profile is whole at any time"] += read
    for writer in writers:
        writer.kill()
        writer.communicate()
    said = _end(unit, "a store after others were killed", _store(folder, 0), UNTIL)
    unit.check(said[1:] == ["1"], "a profile is kept after others were killed", said)
    aside = [name for name in os.listdir(folder) if not name.startswith(".") and not name.endswith(".json")]
    unit.check(not aside, "nothing was set aside", aside)


def _three_servers(unit: Unit, plain: CpuServer, folder: Path, draw: random.Random) -> None:
    """One server has a good folder, one cannot write to it, and one has a full disk; two share the folder."""
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
