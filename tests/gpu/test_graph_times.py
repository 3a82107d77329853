"""Replays of real graphs, timed by the device between two events."""

from __future__ import annotations

from pathlib import Path

import pytest


def test_a_graph_of_more_work_takes_longer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import torch

    from benchmarks.server import graph_recorder
    from benchmarks.server.graph_times import read

    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", torch.cuda.CUDAGraph.replay)  # so that it is put back
    monkeypatch.setenv(graph_recorder.FOLDER, str(tmp_path))
    numbers = torch.ones(1 << 24, device="cuda")
    graphs = []
    for passes in (1, 8):
        numbers.mul_(1.0)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(passes):
                numbers.mul_(1.0)
        graphs.append(graph)
    graph_recorder.record()
    for number in range(3 * graph_recorder.AHEAD):
        graphs[number % 2].replay()
    torch.cuda.synchronize()
    [path] = tmp_path.glob("*.csv")
    replays = read(path)
    assert len(replays) == 2 * graph_recorder.AHEAD
    short, long = ([one.graph_ms for one in replays if one.graph == number] for number in (0, 1))
    assert min(long) > sorted(short)[len(short) // 2] > 0
    assert all(one.gap_ms >= 0 for one in replays)
