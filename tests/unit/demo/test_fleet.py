"""The servers that engine tests share: room goes to them in the order of the tests, so that no test waits for ever."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import pytest

from tests.engine import fleet
from tests.engine.fleet import Fleet

NAMES = [f"server {index}" for index in range(8)]


class Server:
    """Starts in no time; *fails* instead of starting."""

    alive = 0
    most_alive = 0
    lock = threading.Lock()

    def __init__(self, fails: bool = False) -> None:
        self.fails = fails
        self.runs = False

    def start(self) -> None:
        if self.fails:
            raise RuntimeError("no port")
        with Server.lock:
            Server.alive += 1
            Server.most_alive = max(Server.most_alive, Server.alive)
        self.runs = True

    def stop(self) -> None:
        if self.runs:
            with Server.lock:
                Server.alive -= 1
        self.runs = False


def _fleet(**servers: Any) -> Fleet:
    Server.alive = Server.most_alive = 0
    return Fleet(servers, Counter(list(servers)))


@pytest.mark.parametrize("attempt", range(20))
def test_one_after_the_other_with_the_first_kept_to_the_end(attempt: int) -> None:
    servers = _fleet(**dict.fromkeys(NAMES, Server))
    first = servers.take(NAMES[0])
    for name in NAMES[1:]:
        assert servers.take(name).runs
        servers.release(name)
    assert first.runs
    servers.close()
    assert Server.most_alive <= fleet.MOST_ALIVE and Server.alive == 0


def test_a_server_that_does_not_start_fails_its_test_and_gives_its_room_back() -> None:
    servers = _fleet(**dict.fromkeys(NAMES[:4], lambda: Server(fails=True)), last=Server)
    for name in NAMES[:4]:
        with pytest.raises(RuntimeError, match="no port"):
            servers.take(name)
    assert servers.take("last").runs
    servers.close()


def test_closing_ends_those_that_wait_for_room() -> None:
    servers = _fleet(**dict.fromkeys(NAMES, Server))
    servers.take(NAMES[0])
    servers.close()
    assert Server.alive == 0
