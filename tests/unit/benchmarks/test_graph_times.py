"""Replays timed on the device: what is written, and which stretches count as faster."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.server import graph_recorder, graph_times
from benchmarks.server.graph_recorder import AHEAD, Recorder
from benchmarks.server.graph_times import FEWEST_PASSES, Replay, faster, read, table


class Device:
    """Runs replays one after the other, the first graph in 4 ms and the second in 1 ms."""

    def __init__(self) -> None:
        self.now = 0.0
        self.graphs = [object(), object()]

    def replay(self, graph: object) -> None:
        self.now += 4.0 if graph is self.graphs[0] else 1.0

    def idle(self, ms: float) -> None:
        self.now += ms

    def event(self) -> Event:
        return Event(self)


class Event:
    def __init__(self, device: Device) -> None:
        self.device, self.at = device, -1.0

    def record(self) -> None:
        self.at = self.device.now

    def synchronize(self) -> None:
        assert self.at >= 0

    def elapsed_time(self, later: Event) -> float:
        return later.at - self.at


def test_a_row_has_what_a_replay_took_and_the_gap_before_it(tmp_path: Path) -> None:
    device = Device()
    recorder = Recorder(tmp_path, device.event)
    for number in range(3 * AHEAD):
        device.idle(30.0 if number == 100 else 0.5)
        recorder.replay(device.replay, device.graphs[number % 2])
    [path] = tmp_path.glob("*.csv")
    replays = read(path)
    assert len(replays) == 2 * AHEAD  # the last ones wait for the device
    assert [(one.graph, one.gap_ms, one.graph_ms) for one in replays[:3]] == [(0, 0, 4), (1, 0.5, 1), (0, 0.5, 4)]
    assert replays[100].gap_ms == 30
    assert [one.place for one in replays[96:104]] == [48, 48, 49, 49, 0, 0, 1, 1]
    lines = list(table(replays, 1))
    assert len(lines) == 3 and lines[1].split()[:4] == ["0", "300", "0.500", "4.000"]
    assert len(list(table(replays, AHEAD + 1))) == 1


def test_nothing_is_timed_unless_the_environment_says_where_to(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import torch

    plain = torch.cuda.CUDAGraph.replay
    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", plain)  # so that it is put back
    monkeypatch.delenv(graph_recorder.FOLDER, raising=False)
    graph_recorder.record()
    assert torch.cuda.CUDAGraph.replay is plain
    monkeypatch.setenv(graph_recorder.FOLDER, str(tmp_path / "times"))
    graph_recorder.record()
    assert torch.cuda.CUDAGraph.replay is not plain and (tmp_path / "times").is_dir()


def passes(*faster_at: tuple[int, int], count: int = 4, by: float = 0.15) -> list[Replay]:
    """Return passes of 50 rounds that slow down as they go on; at (pass, place) a round is faster *by* ms."""
    return [
        Replay(100.0 * one + place, 0, 0.06, 4.7 + place / 100 - by * ((one, place) in faster_at), place)
        for one in range(count)
        for place in range(50)
    ]


def test_a_stretch_is_what_is_faster_than_the_same_place_of_other_passes() -> None:
    [first, second] = faster(passes((1, 10), (1, 11), (1, 12), (3, 49)))
    assert (first.seconds, first.rounds, round(first.faster_ms, 3)) == (110.0, 3, 0.15)
    assert (second.seconds, second.rounds) == (349.0, 1)
    assert not faster(passes((1, 10), by=0.03))
    assert not faster(passes((1, 10), count=FEWEST_PASSES - 1))


def test_a_file_that_is_none_gets_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.csv"
    other.write_text("seconds,watts\n1,2\n")
    cut = tmp_path / "cut.csv"
    cut.write_text("seconds,graph,gap_ms,graph_ms\n1.0,0,0.06,4.7\n1.1,0,0.0")
    absent = tmp_path / "none.csv"
    expected = "first line: expected seconds,graph,gap_ms,graph_ms"
    said = {other: expected, cut: "line 3: expected a number", absent: "cannot be read: No such file"}
    for path, told in said.items():
        monkeypatch.setattr("sys.argv", ["graph_times", str(path)])
        assert graph_times.main() == 2
        [line] = capsys.readouterr().err.splitlines()
        assert str(path) in line and told in line
