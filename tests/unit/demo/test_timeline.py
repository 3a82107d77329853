"""The demo's timeline: the positions of its marks, and its width."""

from __future__ import annotations

import io
import re

import pytest

from sglang_adaptive.lab.demo.drawing import Span, spans, timeline
from sglang_adaptive.lab.demo.results import Run
from sglang_adaptive.lab.demo.terminal import console_of
from tests.demo_runs import EMA, TIERS, ema_run, phase, result

HARD = phase(1, "hard", 1)


def chart(run: Run, columns: int = 80, encoding: str = "utf-8") -> list[str]:
    console = console_of(io.TextIOWrapper(io.BytesIO(), encoding=encoding))
    console.width = columns
    with console.capture() as captured:
        console.print(timeline(run, console))
    return captured.get().splitlines()


def rows(run: Run, columns: int = 80) -> dict[int, list[str]]:
    """Return the marks of each depth, phase by phase."""
    found = [re.match(r"│ *(\d+)│(.*)│$", line) for line in chart(run, columns)]
    return {int(row[1]): row[2].split("│") for row in found if row}


def test_switches_divide_a_phase() -> None:
    measured = result(HARD, 2.0, {7: 1, 3: 1, 1: 8}, 7, [(0.5, 7, 3), (0.75, 3, 1)])
    assert spans(measured) == [Span(0.0, 0.5, 7), Span(0.5, 0.75, 3), Span(0.75, 2.0, 1)]
    assert spans(result(HARD, 2.0, {3: 5}, 3)) == [Span(0.0, 2.0, 3)] and spans(result(HARD, 2.0)) == []


def test_a_switch_before_the_first_request_or_after_the_last_stays_inside_the_phase() -> None:
    early, late = result(HARD, 2.0, {}, 7, [(-0.1, 7, 3)]), result(HARD, 2.0, {}, 7, [(2.5, 7, 3)])
    assert spans(early) == [Span(0.0, 2.0, 3)]
    assert spans(late) == [Span(0.0, 2.0, 7), Span(2.0, 2.0, 3)]


def test_marks_stand_at_the_depth_and_time_of_the_switches() -> None:
    measured = result(HARD, 10.0, {7: 1, 3: 1, 1: 8}, 7, [(2.0, 7, 3), (5.0, 3, 1)])
    drawn = rows(Run(EMA, TIERS, (measured,)), columns=18)
    assert drawn == {7: ["██        "], 3: ["  ███     "], 1: ["     █████"]}


def test_a_column_with_several_depths_marks_the_longest_and_hints_at_the_others() -> None:
    measured = result(HARD, 10.0, {7: 1, 3: 1, 1: 8}, 1, [(3.1, 1, 3), (3.3, 3, 1)])
    drawn = rows(Run(EMA, TIERS, (measured,)), columns=18)
    assert drawn == {7: [" " * 10], 3: ["   ░      "], 1: ["█" * 10]}


@pytest.mark.parametrize("columns", [80, 100, 120])
def test_every_line_fits_and_every_phase_is_equally_wide(columns: int) -> None:
    assert max(map(len, chart(ema_run(), columns))) <= columns
    widths = {len(cell) for cells in rows(ema_run(), columns).values() for cell in cells}
    assert len(widths) == 1 and len(rows(ema_run(), columns)) == len(TIERS)
