"""Forked servers end with the process that started them, for example when a pytest-xdist process crashes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil

from tests.engine.workload import DEADLINE

ROOT = Path(__file__).parents[3]
STARTS = """
import signal, sys
from pathlib import Path
from tests import forked_servers

# The server is another program, and needs nothing of SGLang.
forked_servers.FARM[1:] = ["-c", "from tests import forked_servers; forked_servers.serve(lambda: None)"]
server = forked_servers.ForkedServer(["--model-path", "none"], log=Path(sys.argv[1]))
server.command = ["/bin/sleep", "1000"]
server.launch()
print(server.pid, flush=True)
signal.pause()
"""


def test_a_server_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    command = [sys.executable, "-c", STARTS, str(tmp_path / "log")]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        server = psutil.Process(int(starter.stdout.readline()))
        assert server.is_running()
        starter.kill()
    gone, _ = psutil.wait_procs([server], timeout=DEADLINE)
    assert gone
