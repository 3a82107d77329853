"""The demo's timeline: the positions of its marks, and its width."""

from __future__ import annotations

import re

import pytest

from sglang_adaptive.lab.demo.drawing import Span, draw, points, spans
from sglang_adaptive.lab.demo.results import Run
from sglang_adaptive.lab.demo.terminal import Style
from tests.demo_runs import EMA, TIERS, ema_run, phase, plain_run, result

HARD = phase(1, "hard", 1)


def rows(run: Run, style: Style) -> dict[int, list[str]]:
    """Return the marks of each depth, phase by phase."""
    found = {}
    for line in draw(run, style):
        row = re.match(r"[ a-z]*(\d+) [│|](.*)[│|]$", line)
        if row:
            found[int(row[1])] = re.split(r"[│|]", row[2])
    return found


def test_a_phase_without_switches_is_one_span() -> None:
    assert spans(result(HARD, 2.0, {3: 5}, 3)) == [Span(0.0, 2.0, 3)]


def test_no_speculation_has_no_spans() -> None:
    assert spans(result(HARD, 2.0)) == []


def test_switches_divide_a_phase() -> None:
    measured = result(HARD, 2.0, {7: 1, 3: 1, 1: 8}, 7, [(0.5, 7, 3), (0.75, 3, 1)])
    assert spans(measured) == [Span(0.0, 0.5, 7), Span(0.5, 0.75, 3), Span(0.75, 2.0, 1)]


def test_a_switch_before_the_first_request_or_after_the_last_stays_inside_the_phase() -> None:
    early, late = result(HARD, 2.0, {}, 7, [(-0.1, 7, 3)]), result(HARD, 2.0, {}, 7, [(2.5, 7, 3)])
    assert spans(early) == [Span(0.0, 2.0, 3)]
    assert spans(late) == [Span(0.0, 2.0, 7), Span(2.0, 2.0, 3)]


def test_points_leave_the_pauses_between_phases_out() -> None:
    seen = [(point.phase, point.seconds, point.steps) for point in points(ema_run(seconds=1.0))]
    assert seen[:5] == [
        ("1-easy-x1", 0.0, 7),
        ("2-hard-x1", 1.0, 7),
        ("2-hard-x1", 1.5, 1),
        ("3-easy-x1", 2.0, 1),
        ("3-easy-x1", 2.5, 7),
    ]


def test_marks_stand_at_the_depth_and_time_of_the_switches() -> None:
    measured = result(HARD, 10.0, {7: 1, 3: 1, 1: 8}, 7, [(2.0, 7, 3), (5.0, 3, 1)])
    drawn = rows(Run(EMA, TIERS, (measured,)), Style(columns=23))
    assert drawn == {7: ["██        "], 3: ["  ███     "], 1: ["     █████"]}


def test_a_column_with_several_depths_marks_the_longest_and_hints_at_the_others() -> None:
    measured = result(HARD, 10.0, {7: 1, 3: 1, 1: 8}, 1, [(3.1, 1, 3), (3.3, 3, 1)])
    drawn = rows(Run(EMA, TIERS, (measured,)), Style(columns=23))
    assert drawn == {7: [" " * 10], 3: ["   ░      "], 1: ["█" * 10]}


@pytest.mark.parametrize("columns", [80, 100, 120])
def test_every_line_fits_and_every_phase_is_equally_wide(columns: int) -> None:
    run = ema_run()
    lines = draw(run, Style(columns=columns))
    assert max(map(len, lines)) <= columns
    widths = {len(cell) for cells in rows(run, Style(columns=columns)).values() for cell in cells}
    assert len(widths) == 1
    bars = [[m.start() for m in re.finditer("[│└┴┘]", line)] for line in lines if re.search("[│└]", line)]
    assert all(bar == bars[0] for bar in bars)
    assert len(bars) == len(TIERS) + 1


def test_every_moment_has_a_depth() -> None:
    drawn = rows(ema_run(), Style(columns=80))
    for cells in zip(*("".join(row) for row in drawn.values()), strict=True):
        assert "█" in cells


def test_headings_name_the_phases_in_order() -> None:
    concurrency, families, *_ = draw(ema_run(), Style(columns=80))
    assert families.split() == ["easy", "hard", "easy"] * 2
    assert "one request at a time" in concurrency and "4 requests at a time" in concurrency


def test_ascii_where_the_terminal_has_no_more() -> None:
    text = "\n".join(draw(ema_run(), Style(columns=80, unicode=False)))
    assert text.isascii() and "#" in text


def test_colour_changes_no_character() -> None:
    plain = draw(ema_run(), Style(columns=80))
    coloured = draw(ema_run(), Style(columns=80, colour=True))
    assert coloured != plain
    assert [re.sub(r"\x1b\[\d+m", "", line) for line in coloured] == plain


def test_without_speculation_there_are_no_points() -> None:
    assert points(plain_run()) == []
