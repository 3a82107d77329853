"""A server reads its configuration file once, in the launcher, and all of its ranks have the same configuration."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from sglang_adaptive.lab.cpu_engine.server import CpuServer, ServerError, free_port
from tests.engine.fault import write_plugin
from tests.engine.servers import adapting, of_two_ranks, speculation
from tests.engine.workload import adaptive, wait_until

COUNTER = """
import os, sys

def register():
    def opened(event, arguments):
        if event == "open" and str(arguments[0]) == {file!r}:
            os.write(log, f"{{os.getpid()}}\\n".encode())

    log = os.open({log!r}, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    sys.addaudithook(opened)
"""
"""A plugin that writes the id of a process to *log* at each of its reads of *file*."""
EVERY_READER = {
    "policy": "throughput",
    "throughput": {"candidate_steps": [0, 1, 3], "lookup": True},
    "audit": {"share": 0.5},
    "warm_up": False,
}
"""Each key turns on a part that asks for the configuration when the server starts."""


def test_one_read_serves_the_launcher_and_both_ranks(tmp_path: Path) -> None:
    arguments = adapting(tmp_path, "once", EVERY_READER)
    file, log = Path(arguments[1]), tmp_path / "reads"
    plugin = write_plugin(tmp_path / "plugin", "counter:register", COUNTER.format(file=str(file), log=str(log)))
    with of_two_ranks(tmp_path, "once", *speculation(*arguments), **plugin) as server:
        assert log.read_text().split() == [str(server.pid)]
        assert adaptive(server)["config"]["audit"]["share"] == 0.5
        file.write_text(json.dumps({**EVERY_READER, "throughput": {"candidate_steps": [0, 3], "lookup": True}}))
        assert server.pid is not None
        os.kill(server.pid, signal.SIGHUP)
        wait_until(lambda: adaptive(server)["config_changed"], "the file is read again")
        assert adaptive(server)["config"]["throughput"]["candidate_steps"] == [0, 3]
        assert log.read_text().split() == [str(server.pid)] * 2, "and its ranks are told"


def test_two_nodes_with_different_files_end_and_say_so(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"

    def node(rank: int, **throughput: Any) -> CpuServer:
        config = {"throughput": {"candidate_steps": [0, 1, 3], **throughput}, "warm_up": False}
        arguments = speculation(*adapting(tmp_path, f"node{rank}", config))
        place = ("--nnodes", "2", "--node-rank", str(rank), "--dist-init-addr", address)
        return of_two_ranks(tmp_path, f"node{rank}", *arguments, *place)

    nodes = [node(0), node(1, sync_rounds=9)]
    try:
        for each in nodes:
            each.launch()
        for rank, each in enumerate(nodes):
            with pytest.raises(ServerError, match="the server ended"):
                while not each.poll():
                    time.sleep(0.1)
            told = "differs on tensor-parallel rank 1: throughput.sync_rounds: 32 -> 9; expected the same configuration"
            assert f"{tmp_path}/node{rank}.json: {told} on all nodes" in each.log_path.read_text()
    finally:
        for each in nodes:
            each.stop()
