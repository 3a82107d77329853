"""The demo as a user runs it, with fewer tokens: its results and its cleanup."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from sglang_adaptive.lab.demo.servers import STATIC_DEPTHS
from tests.engine.workload import DEADLINE, has_ended


@dataclass
class Demo:
    """A running demo and every process that it was seen to start."""

    process: subprocess.Popen[str]
    started: list[psutil.Process] = field(default_factory=list)

    def read_until(self, text: str) -> str:
        """Read the progress up to the line with *text*, recording the current processes."""
        assert self.process.stderr is not None
        lines = []
        for line in self.process.stderr:
            lines.append(line)
            if text in line:
                self.note()
                return "".join(lines)
        pytest.fail(f"the demo ended without saying {text!r}:\n{''.join(lines)}")

    def note(self) -> None:
        self.started = psutil.Process(self.process.pid).children(recursive=True)

    def left_behind(self) -> list[psutil.Process]:
        """Return the recorded processes that still run, without those that ended but were not reaped yet."""
        _, alive = psutil.wait_procs(self.started, timeout=DEADLINE)
        return [process for process in alive if not has_ended(process)]


@contextmanager
def demo(folder: Path, *arguments: str) -> Iterator[Demo]:
    command = [sys.executable, "-m", "sglang_adaptive.cli", "demo", "--policy", "ema", *arguments]
    with (folder / "stdout").open("w") as stdout:
        process = subprocess.Popen(
            command,
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "TMPDIR": str(folder), "PYTHONIOENCODING": "utf-8", "COLUMNS": "80"},
        )
    running = Demo(process)
    try:
        yield running
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(DEADLINE)
        for straggler in running.left_behind():
            straggler.kill()


def test_a_whole_run(tmp_path: Path) -> None:
    with demo(tmp_path, "--tokens", "16") as running:
        running.read_until("warmed up")
        assert running.process.stderr is not None
        progress = running.process.stderr.read()
        code = running.process.wait(DEADLINE)
        printed = (tmp_path / "stdout").read_text()
        assert code == 0, printed + progress
        assert len(running.started) >= 6  # two servers of three processes each
        assert running.left_behind() == []
    assert [path.name for path in tmp_path.iterdir()] == ["stdout"]

    assert "Lossless: in every run, all 33 requests (528 tokens) match" in printed and "FAILED" not in printed
    assert max(map(len, printed.splitlines())) <= 80 and "\x1b" not in printed
    moved = re.search(r"EMA: the depth moved (\d+) times; .* on easy text and .* on hard", " ".join(printed.split()))
    assert moved is not None and int(moved[1]) >= 2
    lengths = printed[printed.index("\nAccept length") :].splitlines()
    for depth in STATIC_DEPTHS:
        row = next(line for line in lengths if line.startswith(f"static {depth} "))
        easy, hard, *shares = row.removeprefix(f"static {depth}").split()
        assert depth < 7 or float(easy) > float(hard)
        # With overlap, the round launched before the hold may be counted after it.
        assert max(int(share.rstrip("%")) for share in shares if share.endswith("%")) >= 95


def test_ctrl_c_while_servers_start(tmp_path: Path) -> None:
    with demo(tmp_path) as running:
        running.read_until("starting 2 servers")
        deadline = time.monotonic() + DEADLINE
        while len(running.started) <= 2:  # until a server has processes of its own
            assert running.process.poll() is None and time.monotonic() < deadline
            time.sleep(0.2)
            running.note()
        running.process.send_signal(signal.SIGINT)
        assert running.process.stderr is not None
        said = running.process.stderr.read()
        assert running.process.wait(DEADLINE) == 130
        assert said.splitlines()[-1] == "sglang-adaptive demo: interrupted; every server was stopped"
        assert running.left_behind() == []
    assert [path.name for path in tmp_path.iterdir()] == ["stdout"]
