"""Ports for servers of several processes on one host, and for the ports that SGLang derives from them."""

from __future__ import annotations

import socket
import subprocess
import sys
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from sglang_adaptive.lab.cpu_engine import server

SOME = 20
ASK = f"""
from sglang_adaptive.lab.cpu_engine.server import free_port
print(*(free_port() for _ in range({SOME})), flush=True)
input()
"""


def test_processes_of_a_host_get_different_ports_while_nothing_listens() -> None:
    start = partial(
        subprocess.Popen, [sys.executable, "-c", ASK], cwd=Path(__file__).parents[3], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    running = [start() for _ in range(4)]
    try:
        told = [process.stdout.readline().split() for process in running if process.stdout is not None]
    finally:
        for process in running:
            process.communicate("\n")
    found = [int(port) for one in told for port in one]
    assert len(set(found)) == len(found) == 4 * SOME


def test_a_process_keeps_its_latest_ports_and_gets_as_many_as_it_asks_for() -> None:
    found = [server.free_port() for _ in range(600)]
    for first in range(0, len(found) - server._KEPT, server._KEPT):
        latest = found[first : first + server._KEPT]
        assert len(set(latest)) == len(latest)
    assert len(server._held) == server._KEPT


def test_a_port_that_another_program_listens_on_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as one, socket.socket() as other:
        for used in (one, other):
            used.bind(("127.0.0.1", 0))
        taken, free = (used.getsockname()[1] for used in (one, other))
        other.close()
        monkeypatch.setattr(server, "_ports", lambda: iter([taken, free]))
        assert server.free_port() == free
        with pytest.raises(server.ServerError):
            server.free_port()


def test_no_port_is_among_those_that_sglang_draws_or_derives() -> None:
    from sglang.srt import server_args
    from sglang.srt.utils import network

    assert server_args.ZMQ_TCP_PORT_DELTA == server._OFFSET
    low = network.get_free_port_below_ephemeral.__defaults__
    assert low is not None and low[0] == server._SGLANGS
    found = sorted(server._ports())
    assert found[-1] < server._SGLANGS and all(after - before >= server._APART for before, after in pairwise(found))
    derived = {port + server._OFFSET + further for port in found for further in range(server._APART)}
    assert len(derived) == len(found) * server._APART and not derived & set(found)
