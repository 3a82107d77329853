"""The recorded traces are readable, small, and match their page."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.traces.replay import main, rounds, table
from sglang_adaptive.lab.traces import read

FOLDER = Path(__file__).parents[3] / "benchmarks" / "traces"
TRACES = sorted(FOLDER.glob("*.npz"))
MOST_BYTES = 1_000_000


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.name)
def test_a_trace_is_small_and_its_page_shows_its_replay(path: Path) -> None:
    assert path.stat().st_size < MOST_BYTES
    page = (FOLDER / "README.md").read_text(encoding="utf-8").splitlines()
    lines = table(read(path))
    start = page.index(f"{path.name}:")
    assert page[start + 2 : start + 2 + len(lines)] == lines


def test_there_are_traces() -> None:
    assert TRACES


def test_a_round_starts_where_the_last_one_ended() -> None:
    accepted = [2, 0, 7, 1, 0, 0]
    assert rounds(accepted, 1) == [2, 2, 1, 1]
    assert rounds(accepted, 7) == [3, 2, 1]


def test_a_trace_that_cannot_be_read_ends_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "none.npz")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
