"""Invalid configuration files: FIFOs, devices, folders, links, truncated files, and far too much content."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from sglang_adaptive.policy.config import load_config
from sglang_adaptive.policy.errors import ConfigError
from tests.campaign.record import Unit

STAGE = "configuration paths"
GOOD = '{"1": {"candidate_steps": [1, 3, 7]}}'
DEADLINE = 5.0
"""CPU seconds that reading any file may take; a quarter of a second is typical, imports included."""
LONGEST_LINE = 2000
BY_COMMAND = 6
"""Files per unit that also go through ``sglang-adaptive validate``."""

Make = Callable[[Path, random.Random], Path]


def _written(content: str | bytes) -> Make:
    def make(folder: Path, _: random.Random) -> Path:
        path = folder / "config.json"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return make


def _fifo(folder: Path, _: random.Random) -> Path:
    os.mkfifo(folder / "pipe")
    return folder / "pipe"


def _linked(target: str) -> Make:
    def make(folder: Path, _: random.Random) -> Path:
        (folder / "link.json").symlink_to(target)
        return folder / "link.json"

    return make


def _link_to_good(folder: Path, draw: random.Random) -> Path:
    (folder / "link.json").symlink_to(_written(GOOD)(folder, draw))
    return folder / "link.json"


def _unreadable(folder: Path, draw: random.Random) -> Path:
    path = _written(GOOD)(folder, draw)
    path.chmod(0)
    return path


def _mutated(folder: Path, draw: random.Random) -> Path:
    data = bytearray(GOOD.encode())
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(data))
        data[at : at + draw.randint(0, 2)] = bytes(draw.randrange(256) for _ in range(draw.randint(0, 3)))
    return _written(bytes(data))(folder, draw)


def _keys(count: int, repeated: bool) -> str:
    names = [f'"k{index}":0' for index in range(count)]
    return "{" + ",".join([*names, '"last":0', '"last":0'] if repeated else names) + "}"


FILES: dict[str, Make] = {
    "a FIFO": _fifo,
    "a folder": lambda folder, _: folder,
    "/dev/zero": lambda *_: Path("/dev/zero"),
    "/dev/null": lambda *_: Path("/dev/null"),
    "/dev/full": lambda *_: Path("/dev/full"),
    "/proc/self/mem": lambda *_: Path("/proc/self/mem"),
    "nothing there": lambda folder, _: folder / "missing.json",
    "a link to a good file": _link_to_good,
    "a link to itself": _linked("link.json"),
    "a link to a device": _linked("/dev/zero"),
    "a link to nothing": _linked("missing"),
    "a file that nobody may read": _unreadable,
    "an empty file": _written(""),
    "a mark of byte order": _written(b"\xef\xbb\xbf" + GOOD.encode()),
    "UTF-16": _written(GOOD.encode("utf-16")),
    "a zero byte": _written(GOOD.encode() + b"\0"),
    "10 MB": _written(b" " * 10_000_000 + GOOD.encode()),
    "nesting of 10^5": _written("[" * 100_000),
    "objects nested 10^5 deep": _written('{"1":' * 100_000),
    "a key given twice": _written('{"policy": "ema", "policy": "ema"}'),
    "10^5 keys": _written(_keys(80_000, repeated=False)),
    "10^5 keys, the last one twice": _written(_keys(80_000, repeated=True)),
    "a number beyond float": _written('{"ema_alpha": 1e999, "1": {"candidate_steps": [1]}}'),
    "a number of 10^5 digits": _written('{"1": {"candidate_steps": [' + "9" * 100_000 + "]}}"),
    "NaN": _written('{"ema_alpha": NaN, "1": {"candidate_steps": [1]}}'),
    "a key of half a megabyte": _written('{"' + "candidate_step" * 40_000 + '": 1}'),
    "a lone surrogate as key": _written('{"\\ud800": 1}'),
    "10^5 depths": _written('{"1": {"candidate_steps": [' + ",".join(["1"] * 200_000) + "]}}"),
    "markup": _written('{"<script>alert(1)</script>": "<b>"}'),
    "control characters": _written('{"\\u001b[31m\\r\\n": 1}'),
    "a good file with some bytes changed": _mutated,
}
GOOD_ONES = ("a link to a good file",)


def run(unit: Unit) -> None:
    """Load every file once, and some through the command; each must quickly give a configuration or one line."""
    draw = unit.random()
    by_command = draw.sample(sorted(FILES), BY_COMMAND)
    for name, make in FILES.items():
        for _ in range(20 if make is _mutated else 1):
            with tempfile.TemporaryDirectory() as folder:
                path = make(Path(folder), draw)
                _load(unit, name, path)
                if name in by_command:
                    _validate(unit, name, path)


def _load(unit: Unit, name: str, path: Path) -> None:
    unit.tried[f"load: {name}"] += 1
    begin = time.process_time()
    try:
        load_config(str(path))
        refused = ""
    except ConfigError as error:
        refused = str(error)
    except Exception as error:
        unit.lose(f"load: {name}", f"{type(error).__name__}: {error}")
        return
    took = time.process_time() - begin
    unit.check(took < DEADLINE, "a file is read or refused soon", f"{name}: {took:.1f} s of CPU time")
    if name in GOOD_ONES:
        unit.check(not refused, "a good file is taken", refused)
    if refused:
        _one_line(unit, name, refused)


def _validate(unit: Unit, name: str, path: Path) -> None:
    command = [sys.executable, "-m", "sglang_adaptive.cli", "validate", str(path)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, errors="replace")
    except subprocess.TimeoutExpired:
        unit.lose(f"validate: {name}", "no end after 60 s")
        return
    unit.check(done.returncode in (0, 2), f"validate: {name}", f"code {done.returncode}: {done.stderr[-500:]}")
    unit.check("Traceback" not in done.stderr, "validate gives no traceback", f"{name}: {done.stderr[-500:]}")


def _one_line(unit: Unit, name: str, line: str) -> None:
    clean = line.isprintable() and len(line) <= LONGEST_LINE
    unit.check(
        clean, "a refusal is one line that a terminal can show", f"{name}: {line[:300]!r}, {len(line)} characters"
    )
    unit.check(line.count("; expected ") == 1, "a refusal says once what is expected", f"{name}: {line[:300]!r}")
