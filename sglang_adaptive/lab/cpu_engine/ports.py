"""Ports for servers, which the processes of one host do not take from one another while the servers start."""

from __future__ import annotations

import contextlib
import random
import socket
from collections import deque
from collections.abc import Iterator
from pathlib import Path

_SGLANGS = 22000
"""From here to 29999, SGLang 0.5.23 draws each server's port for NCCL, which its ranks bind much later."""
_OFFSET = 233
"""From a server's port to the ports that SGLang derives from it with attention DP, one for each rank and six more."""
_APART = 16
"""Ports from one server to the next."""
_KEPT = 24
"""Ports that a process keeps for itself, the latest."""

_held: deque[socket.socket] = deque()
"""Sockets whose name is this process's claim to a port; the system frees them when it ends."""


class ServerError(RuntimeError):
    """The server did not start, or has ended; the message ends with the last lines of its log if it has one."""


def free_port() -> int:
    """Return a port of 127.0.0.1 on which no process listens, and which no other process gets from here.

    It is below the system's range of outgoing connections, if known, and below the ports that SGLang draws. Either
    could take it in the seconds before the server binds it. The 15 ports after it are no server's, nor are those that
    SGLang derives from it. The claim lasts until this process ends or has got 24 others. Raises ServerError.
    """
    ports = list(_ports())
    random.shuffle(ports)
    for port in ports:
        if (claim := _claim(port)) is None:
            continue
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            _held.append(claim)
            if len(_held) > _KEPT:
                _held.popleft().close()
            return port
        claim.close()
    raise ServerError(f"no free port between {ports and min(ports)} and {ports and max(ports)}")


def _claim(port: int) -> socket.socket | None:
    """Claim *port* by a name without a file, of the same network namespace; None if a process, perhaps this, has it."""
    claim = socket.socket(socket.AF_UNIX)
    try:
        claim.bind(f"\0sglang-adaptive-port-{port}")
    except OSError:
        claim.close()
        return None
    return claim


def _ports() -> Iterator[int]:
    """Yield the ports for servers; none is among those that SGLang derives from another."""
    try:
        outgoing = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError):
        outgoing = 32768  # Linux's default; other systems begin higher
    end = max(2048, min(outgoing, _SGLANGS))
    for first in range(max(1024, end // 2), end - 2 * _OFFSET + 1, 2 * _OFFSET):
        yield from range(first, first + _OFFSET - _APART, _APART)
