"""Rounds are recorded completely, with salted ids, in bounded space, and never at the cost of serving."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest

from sglang_adaptive.lab.simulate.rounds import read_rounds
from sglang_adaptive.policy.choice import FORCED, drafted
from sglang_adaptive.policy.observation import RoundNote
from sglang_adaptive.runtime import round_trace
from sglang_adaptive.runtime.round_trace import RoundTrace
from tests.fakes import serving


def seen(steps: int, **accepted: int) -> RoundNote:
    return RoundNote(drafted(steps), list(accepted.values()), len(accepted), requests=list(accepted))


def written(file: Path, *rounds: RoundNote) -> None:
    trace = RoundTrace(file, 1e6)
    for observation in rounds:
        trace.add(observation)
    trace.close()


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    written(tmp_path / "t", seen(3, a=2, b=0), seen(3, a=3, b=1), seen(0, b=0), seen(12, b=11, c=12))
    found = read_rounds(tmp_path / "t")
    a, b, c = found.requests.values()
    assert a == [[(3, 2), (3, 3)]]
    assert b == [[(3, 0), (3, 1), (0, 0), (12, 11)]]
    assert c == [[(12, 12)]]
    assert sorted(one.steps for one in found.stream) == [0, 3, 3, 12] and found.batches == {2: 3, 1: 1}


def test_times_and_what_else_a_policy_observes_are_read_back(tmp_path: Path) -> None:
    timed, untimed, held, zero = seen(3, a=2), seen(3, a=1), seen(1, a=0), seen(0, a=0, b=0)
    timed.seconds = timed.since_last = 0.0123456
    untimed.since_last = 2.5
    held.choice = drafted(1, why=FORCED)
    zero.extended, zero.shadow_accepts = False, [1, 0]
    written(tmp_path / "t", timed, untimed, held, zero, seen(0, a=0))
    rounds = read_rounds(tmp_path / "t").stream
    assert [(done.since_last, done.timed) for done in rounds[:2]] == [(pytest.approx(0.012346), True), (2.5, False)]
    assert [done.held for done in rounds] == [False, False, True, False, False]
    assert [done.extended for done in rounds] == [True, True, True, False, True]
    assert [list(done.shadow_accepts) for done in rounds] == [[], [], [], [1, 0], []]


def test_ids_are_salted(tmp_path: Path) -> None:
    ids = []
    for name in ("one", "two"):
        written(tmp_path / name, seen(1, request=1))
        text = (tmp_path / name).read_text()
        assert "request" not in text
        ids += read_rounds(tmp_path / name).requests
    assert len(set(ids)) == 2


def test_a_round_of_unknown_requests_is_left_out(tmp_path: Path) -> None:
    written(tmp_path / "t", RoundNote(drafted(3), [1], 1), seen(3, a=1))
    assert read_rounds(tmp_path / "t").count == 1


def test_space_is_bounded_and_ids_outlive_a_file(tmp_path: Path) -> None:
    trace = RoundTrace(tmp_path / "t", 4000.0)
    for _ in range(2000):
        trace.add(seen(3, a=2, b=0))
    trace.close()
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == ["t", "t.1"]
    assert sum(file.stat().st_size for file in files) <= 4100
    found = read_rounds(tmp_path / "t")
    assert len(found.requests) == 2 and 300 < found.count < 2000


def test_an_older_trace_is_kept_once(tmp_path: Path) -> None:
    for steps in (1, 2, 3):
        written(tmp_path / "t", seen(steps, a=1))
    found = read_rounds(tmp_path / "t")
    assert sorted(one.steps for one in found.stream) == [2, 3] and len(found.requests) == 2


def test_rounds_that_the_disk_is_too_slow_for_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(round_trace, "MOST_WAITING", 3)
    monkeypatch.setattr(round_trace, "WRITE_SECONDS", 3600.0)
    written(tmp_path / "t", *[seen(3, a=3)] * 5)
    found = read_rounds(tmp_path / "t")
    assert (found.count, found.lost) == (3, 2)
    assert list(found.requests.values()) == [[[(3, 3)] * 3, []]]  # a gap starts another stretch


def test_a_disk_that_fails_ends_the_trace_with_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        trace = RoundTrace(tmp_path / "no-such-folder" / "t", 1e6)
        trace.add(seen(3, a=1))
        trace.close()
    (record,) = caplog.records
    assert str(trace.file) in record.getMessage()
    trace.add(seen(3, a=1))


def test_a_disk_that_hangs_does_not_hold_the_end_of_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(round_trace, "CLOSE_SECONDS", 0.1, raising=False)
    answers = threading.Event()
    monkeypatch.setattr(RoundTrace, "_begin", lambda trace: answers.wait(5.0))
    trace = RoundTrace(tmp_path / "t", 1e6)
    trace.close()
    assert trace._thread.is_alive()
    answers.set()


def test_the_controller_hands_on_every_round_but_those_of_the_warm_up(tmp_path: Path) -> None:
    controller, *_ = serving()
    controller.trace = trace = RoundTrace(tmp_path / "t", 1e6)
    for batch, counts in enumerate(([2], [1, 0]), 1):
        controller.choose(batch)
        controller.verified(counts, batch, RoundNote(drafted(3), requests=["a", "b"][:batch]))
    controller.warm_up.begin()
    controller.verified([1], 1, RoundNote(drafted(3), requests=["c"]))
    trace.close()
    found = read_rounds(tmp_path / "t")
    assert list(found.requests.values()) == [[[(3, 2), (3, 1)]], [[(3, 0)]]]
