"""The demo with a real model: questions, displayed answers, and tables."""

from __future__ import annotations

import io
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_adaptive.lab.demo.command import MOST_TURNS
from sglang_adaptive.lab.demo.real_text import QUESTIONS, RealTextDemo, phases
from sglang_adaptive.lab.demo.results import Run, failures
from sglang_adaptive.lab.demo.servers import HELD, contenders
from sglang_adaptive.lab.demo.terminal import AnswerScreen, Progress, console_of
from tests.demo_runs import drawn, result

COLUMNS = 80


def shown(pieces: list[str], rounds: Iterator[Counter[int]]) -> list[str]:
    stream, text = io.StringIO(), ""
    console = console_of(stream)
    console.width = COLUMNS
    with AnswerScreen(console, lambda: next(rounds)) as screen:
        for count, piece in enumerate(pieces, 1):
            text += piece
            screen.grown(text, count)
    return stream.getvalue().splitlines()[1:]


@given(st.lists(st.text(alphabet="ab \n", max_size=12), max_size=40))
def test_no_word_of_an_answer_is_lost_and_no_line_is_too_long(pieces: list[str]) -> None:
    lines = shown(pieces, repeat(Counter()))
    assert all(len(line) <= COLUMNS for line in lines)
    written = "".join(line.partition("│")[2] for line in lines)
    assert "".join(written.split()) == "".join("".join(pieces).split())


def test_the_rounds_of_a_line_stand_beside_it() -> None:
    seen = map(Counter, ({3: 2}, {3: 4, 5: 2}, {3: 4, 5: 2}, {3: 4, 5: 3}))
    first, second, third = shown(["a ", "b ", "c ", "d\n", "e\n", "f "], seen)
    # Four tokens in four new rounds; then no new rounds counted; then the rest in one.
    assert first.split()[:2] == ["3,5", "1.0"]
    assert second.partition("│")[0].strip() == ""
    assert third.split()[:2] == ["5", "2.0"]


def runs(turns: int = 2) -> list[Run]:
    """Without speculation 1 s per answer, static depths half a second, adaptive a quarter."""
    found = []
    for contender in contenders(["throughput"], HELD):
        speculates = contender.server != "none"
        seconds = 0.25 if contender.adaptive else 0.5 if speculates else 1.0
        depth = contender.forced_steps or 5
        results = [
            result(phase, seconds, {depth: 4} if speculates else None, depth if speculates else None)
            for turn in range(1, turns + 1)
            for phase in phases(turn, 16)
        ]
        found.append(Run(contender, (1, 3, 5, 7) if speculates else (), tuple(results)))
    return found


@pytest.mark.parametrize("turns", [1, 2, 9, MOST_TURNS])
def test_the_tables_give_ratios_and_fit_the_terminal(turns: int) -> None:
    demo = RealTextDemo(Namespace(), Path(), Progress(io.StringIO()))
    console = console_of(io.StringIO())
    console.width = COLUMNS
    told = drawn(*demo.findings(runs(turns), console), columns=COLUMNS)
    assert max(map(len, told)) <= COLUMNS
    (adaptive,) = [line.split() for line in told if line.startswith("throughput") and len(line.split()) == 8]
    assert adaptive[-2:] == ["4.00", "2.00"]
    assert all(sum(kind in line for line in told) >= 1 for kind in QUESTIONS)


def test_a_policy_that_was_set_aside_is_a_failure() -> None:
    good = runs()
    assert failures(good, [], moves=False) == []
    set_aside = Run(good[-1].contender, good[-1].tiers, good[-1].phases, "a fault")
    assert len(failures([*good[:-1], set_aside], ["another token"], moves=False)) == 2
