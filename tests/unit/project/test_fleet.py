"""Servers that tests share: which of them get room, whatever tests do and in whatever order they run."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cheap_servers import NAMES, PLENTY, Makers, inner_run
from tests.engine.fleet import ATTEMPTS, MOST_ALIVE, SERVER_BYTES, Fleet, NoServerError
from tests.engine.workload import wait_until

ROOT = Path(__file__).parents[3]
Open = Callable[..., Fleet]


@pytest.fixture
def makers(tmp_path: Path) -> Makers:
    return Makers(tmp_path)


@pytest.fixture
def open_fleet() -> Iterator[Open]:
    """Create fleets, with plenty of memory unless specified, and close them."""
    fleets = []

    def opened(makers: Makers, **options: object) -> Fleet:
        fleets.append(Fleet(makers, **{"available": lambda: PLENTY, **options}))
        return fleets[-1]

    yield opened
    for fleet in fleets:
        fleet.close()


def until_running(makers: Makers, *names: str) -> None:
    wait_until(lambda: makers.running() == sorted(names), f"{names} run, and no others")


def test_the_servers_of_a_turn_and_the_next_ones_run_and_no_others(makers: Makers, open_fleet: Open) -> None:
    fleet = open_fleet(makers)
    fleet.turn(["one"], [["two"], ["one", "three"], ["four"]])
    assert fleet.take("one").is_running()
    until_running(makers, "one", "two", "three")
    fleet.turn(["four"], [["one"]])
    assert fleet.take("four").is_running()
    until_running(makers, "one", "four")
    fleet.close()
    assert makers.running() == []
    assert makers.starts() == dict.fromkeys(NAMES[:4], 1)


def test_an_idle_server_gives_way_though_a_later_test_needs_it(makers: Makers, open_fleet: Open) -> None:
    """Servers with later uses once held all the room, which caused a deadlock."""
    fleet, first, others = open_fleet(makers), NAMES[:MOST_ALIVE], NAMES[MOST_ALIVE:]
    for needs, coming in ((first, [others, first]), (others, [first]), (first, [])):
        fleet.turn(needs, coming)
        assert all(fleet.take(name).is_running() for name in needs)
    until_running(makers, *first)


def test_a_test_gets_what_it_needs_beyond_the_usual_room_and_without_having_said_so(
    makers: Makers, open_fleet: Open
) -> None:
    fleet = open_fleet(makers)
    fleet.turn(NAMES[:-1], [])
    assert all(fleet.take(name).is_running() for name in NAMES)
    assert makers.running() == sorted(NAMES)


def test_who_waits_in_vain_is_told_so_and_twice_at_most(tmp_path: Path, open_fleet: Open) -> None:
    fleet = open_fleet(Makers(tmp_path, two="exec sleep 1000"), wait_seconds=0.3)
    fleet.turn(["two"], [])
    for seconds in (0.3, 0.3, 0.0):
        begin = time.monotonic()
        with pytest.raises(NoServerError, match=r"two does not come up: not ready after 0\.3 s, 300\.0 GB free"):
            fleet.take("two")
        assert seconds <= time.monotonic() - begin < seconds + 0.3


def test_a_start_that_fails_is_tried_again_once(tmp_path: Path, open_fleet: Open) -> None:
    makers = Makers(tmp_path, one="echo a line of its log; exit 3")
    fleet = open_fleet(makers)
    for _ in range(2):
        fleet.turn(["one", "two"], [])
        with pytest.raises(NoServerError, match=r"(?s)one does not come up: .*ended with code 3.*a line of its log"):
            fleet.take("one")
        assert fleet.take("two").is_running()
    assert makers.starts() == {"one": ATTEMPTS, "two": 1}


def test_a_server_that_died_and_one_that_was_discarded_are_replaced(makers: Makers, open_fleet: Open) -> None:
    fleet = open_fleet(makers)
    fleet.turn(["one", "two"], [])
    first = fleet.take("one")
    os.kill(first.pid, signal.SIGKILL)
    wait_until(lambda: not first.is_running(), "the server is dead")
    second = fleet.take("one")
    assert second is not first and second.is_running()
    fleet.discard()
    fleet.turn(["one", "two"], [])
    third = fleet.take("one")
    assert third is not second and third.is_running() and not second.is_running()
    assert fleet.take("two").is_running()
    assert makers.starts() == {"one": 3, "two": 1}, "what a test has not taken goes on"


def test_no_server_starts_without_memory_for_it(makers: Makers, open_fleet: Open) -> None:
    fleet = open_fleet(makers, available=lambda: SERVER_BYTES - 1, wait_seconds=0.5)
    fleet.turn(["one"], [])
    with pytest.raises(NoServerError, match=r"3\.0 GB free"):
        fleet.take("one")
    assert not makers.made


def test_where_memory_is_short_the_running_test_has_it(makers: Makers, open_fleet: Open) -> None:
    """As if each server took all the memory that a start requires, and there were memory for two."""
    fleet = open_fleet(makers, available=lambda: (2 - len(makers.running())) * SERVER_BYTES)
    fleet.turn(["one"], [["two"], ["three"]])
    assert fleet.take("one").is_running()
    until_running(makers, "one", "two")
    fleet.turn(["three"], [["one"], ["two"]])
    assert fleet.take("three").is_running()
    fleet.turn(["one"], [["two"]])
    assert fleet.take("one").is_running()
    assert len(makers.running()) <= 2


TESTS = """
import os, signal, time
import pytest

@pytest.fixture
def breaks_before(): raise RuntimeError

@pytest.fixture
def breaks_after(one): raise RuntimeError

@pytest.fixture
def breaks_at_the_end(three):
    yield
    raise RuntimeError

def test_breaks_before(breaks_before, one, two, three): pass
def test_breaks_after(breaks_after, two): pass
def test_breaks(one, four, two):
    one.left = "a depth that is held"
    assert False
def test_finds_nothing_left(one): assert not hasattr(one, "left")
def test_breaks_at_the_end(breaks_at_the_end, four): pass
@pytest.mark.skip
def test_skipped(five): pass
def test_skips(five): pytest.skip()
def test_kills(one):
    os.killpg(one.pid, signal.SIGKILL)
    while one.is_running():  # on a busy machine it takes a moment to die
        time.sleep(0.01)
def test_asks_for_more(request, one): assert request.getfixturevalue("four").is_running()
@pytest.mark.xfail(strict=True)
def test_xfails(four): assert False
def test_uses_all(one, two, three, four, five): assert all(s.is_running() for s in (one, two, three, four, five))
def test_uses_one(one): assert one.is_running()
"""
ENDED = {
    "breaks_before": {"ERROR"},
    "breaks_after": {"ERROR"},
    "breaks": {"FAILED"},
    "breaks_at_the_end": {"PASSED", "ERROR"},
    "xfails": {"XFAIL"},
    **{test: {"PASSED"} for test in ("finds_nothing_left", "kills", "asks_for_more", "uses_all", "uses_one")},
}


@pytest.mark.parametrize("backwards", [False, True])
def test_a_test_that_fails_anywhere_costs_no_other_test_its_server(tmp_path: Path, backwards: bool) -> None:
    command = inner_run(tmp_path, TESTS, "-rA", backwards=backwards)
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    ended: dict[str, set[str]] = {}
    for how, test in re.findall(r"^([A-Z]+) \S+::test_(\w+)", found.stdout, re.MULTILINE):
        ended.setdefault(test, set()).add(how)
    assert ended == ENDED, found.stdout
