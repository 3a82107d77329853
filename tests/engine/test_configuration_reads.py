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
from tests.engine.fault import reads_of
from tests.engine.servers import adapting, of_two_ranks, speculation
from tests.engine.workload import adaptive, kept, wait_until


def test_one_read_serves_the_launcher_and_both_ranks(lookups: CpuServer) -> None:
    file = Path(lookups.command[lookups.command.index("--speculative-adaptive-config") + 1])
    assert lookups.pid is not None
    assert reads_of(file).read_text().split() == [str(lookups.pid)]
    with kept(lookups):
        file.write_text(json.dumps({"throughput": {"candidate_steps": [0, 3], "lookup": True}}))
        os.kill(lookups.pid, signal.SIGHUP)
        wait_until(lambda: adaptive(lookups)["config"]["throughput"]["candidate_steps"] == [0, 3], "it is read again")
        assert reads_of(file).read_text().split() == [str(lookups.pid)] * 2, "and its ranks are told"


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
