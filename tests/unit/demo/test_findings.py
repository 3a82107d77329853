"""The demo's tables, sentences and timeline, its record of switches, and its check of the outputs."""

from __future__ import annotations

import dataclasses
import io
import re
from typing import Any

import pytest

from sglang_adaptive.lab.demo import drawing
from sglang_adaptive.lab.demo.drawing import spans, where_it_went, who_was_fastest
from sglang_adaptive.lab.demo.measure import SwitchLog
from sglang_adaptive.lab.demo.results import MISMATCHES_SHOWN, PhaseResult, Run, failures, mismatches
from sglang_adaptive.lab.demo.terminal import console_of
from sglang_adaptive.runtime.controller import AdaptiveController
from sglang_adaptive.runtime.counters import RECENT_SWITCHES
from tests.demo_runs import EMA, TIERS, drawn, ema_run, phase, plain_run, result, static_run
from tests.fakes import ScriptedPolicy, Worker


def runs(ema_seconds: float = 0.8) -> list[Run]:
    """Return runs in order: 10 tokens/s without speculation, 20 at the best static depth, 25 with the EMA policy."""
    return [plain_run(), ema_run(ema_seconds), static_run(1, 2.5), static_run(3, 1.0), static_run(7, 4.0)]


def row(lines: list[str], title: str) -> list[str]:
    (line,) = [line for line in lines if line.startswith(title) and line[len(title)] == " "]
    return line.removeprefix(title).split()


def test_speeds_and_ratios() -> None:
    lines = drawn(drawing.speed_table(runs(), [[index] for index in range(6)], decimals=0))
    assert row(lines, "no speculation") == ["10"] * 7 + ["1.00", "0.50"]
    assert row(lines, "static 1") == ["8"] * 7 + ["0.80", "0.40"]
    assert row(lines, "static 3") == ["20"] * 7 + ["2.00", "1.00"]
    assert row(lines, "EMA") == ["25"] * 7 + ["2.50", "1.25"]
    assert [line[:14].strip() for line in lines[3:]] == ["no speculation", "static 1", "static 3", "static 7", "EMA"]
    assert max(map(len, [*lines, *drawn(drawing.depth_table(runs()))])) <= 80


def test_accept_length_and_shares() -> None:
    lines = drawn(drawing.depth_table(runs()))
    assert row(lines, "static 3") == ["2.50", "2.50", "2.50", "-", "100%", "-"]
    # 120 tokens in 46 rounds; easy phases have 6 + 3 x 8 of them, hard ones 2 x 8.
    assert row(lines, "EMA")[:3] == [f"{80 / 30:.2f}", f"{40 / 16:.2f}", f"{120 / 46:.2f}"]
    assert row(lines, "  on easy text") == ["20%", "-", "80%"]
    assert row(lines, "  on hard text") == ["75%", "-", "25%"]


def test_sentences_below_the_tables() -> None:
    # Easy: 24 of 30 rounds at 7, the others at 1. Hard: 4 of 16.
    drafted = "rounds drafted 5.8 tokens on easy text and 2.5 on hard text on average"
    assert where_it_went(ema_run(0.8)) == f"EMA: the depth moved 4 times; {drafted}."
    assert "Fastest overall in this run: EMA, 25 tokens/s." in who_was_fastest(runs())
    said = who_was_fastest(runs(ema_seconds=1.6))
    assert "Fastest overall in this run: static 3, 20 tokens/s." in said
    assert "Compared with the best static depth (static 3, known only afterward): EMA 0.62 times." in said
    assert "Compared with no speculation: EMA 1.25 times." in said


def test_a_depth_that_does_not_follow_the_text_is_told_and_one_that_never_moves_is_a_failure() -> None:
    still = dataclasses.replace(static_run(3, 1.0), contender=ema_run().contender)
    told = "3.0 tokens on easy text and 3.0 on hard, so in this run it did not follow the text."
    assert where_it_went(still).endswith(told)
    assert failures([plain_run(), still], [], moves=True) == ["EMA: the depth never moved"]
    assert failures(runs(), [], moves=True) == []


def planted(phase: int, outputs: tuple[tuple[int, ...], ...]) -> Run:
    run = ema_run()
    changed = dataclasses.replace(run.phases[phase], outputs=outputs)
    return dataclasses.replace(run, phases=(*run.phases[:phase], changed, *run.phases[phase + 1 :]))


@pytest.mark.parametrize(
    ("tokens", "position", "expected", "got"),
    [
        ((0, 1, 2, 99, 99, *range(5, 10)), 3, 3, 99),
        (tuple(range(7)), 7, 7, "missing"),
        (tuple(range(11)), 10, "missing", 10),
        ((), 0, 0, "missing"),
    ],
)
def test_the_first_differing_token_is_found(
    tokens: tuple[int, ...], position: int, expected: int | str, got: int | str
) -> None:
    found = mismatches(plain_run(), planted(4, (tuple(range(10)), tokens)))
    told = f"token {position} is {got}, without speculation {expected}"
    assert found == [f"EMA, phase 5-hard-x4, prompt 'two': {told}"]
    assert mismatches(plain_run(), ema_run()) == []


def test_mismatches_fail_the_demo_and_some_are_printed() -> None:
    lines = failures([plain_run(), ema_run()], list("abcdefghijklmnopqrst"), moves=True)
    assert lines[0] == "a" and len(lines) == MISMATCHES_SHOWN + 1 and "15 more" in lines[-1]


def test_a_missing_request_is_not_taken_for_equality() -> None:
    with pytest.raises(ValueError, match="argument 3 is shorter"):
        mismatches(plain_run(), planted(0, (tuple(range(10)),)))


HARD = phase(1, "hard", 1)


def rows(measured: PhaseResult) -> dict[int, list[str]]:
    """Return what a timeline of ten columns shows of each depth."""
    console = console_of(io.StringIO())
    console.width = 18
    lines = drawn(drawing.timeline(Run(EMA, TIERS, (measured,)), console), columns=18)
    found = [re.match(r"│ *(\d+)│(.*)│$", line) for line in lines]
    return {int(row[1]): row[2].split("│") for row in found if row}


def test_switches_divide_a_phase() -> None:
    measured = result(HARD, 2.0, {7: 1, 3: 1, 1: 8}, 7, [(0.5, 7, 3), (0.75, 3, 1)])
    assert spans(measured) == [(0.0, 0.5, 7), (0.5, 0.75, 3), (0.75, 2.0, 1)]
    assert spans(result(HARD, 2.0, {3: 5}, 3)) == [(0.0, 2.0, 3)] and spans(result(HARD, 2.0)) == []


def test_a_switch_before_the_first_request_or_after_the_last_stays_inside_the_phase() -> None:
    early, late = result(HARD, 2.0, {}, 7, [(-0.1, 7, 3)]), result(HARD, 2.0, {}, 7, [(2.5, 7, 3)])
    assert spans(early) == [(0.0, 2.0, 3)]
    assert spans(late) == [(0.0, 2.0, 7), (2.0, 2.0, 3)]


def test_marks_stand_at_the_depth_and_time_of_the_switches() -> None:
    measured = result(HARD, 10.0, {7: 1, 3: 1, 1: 8}, 7, [(2.0, 7, 3), (5.0, 3, 1)])
    assert rows(measured) == {7: ["██        "], 3: ["  ███     "], 1: ["     █████"]}


def test_a_column_with_several_depths_marks_the_longest_and_hints_at_the_others() -> None:
    measured = result(HARD, 10.0, {7: 1, 3: 1, 1: 8}, 1, [(3.1, 1, 3), (3.3, 3, 1)])
    assert rows(measured) == {7: [" " * 10], 3: ["   ░      "], 1: ["█" * 10]}


@pytest.fixture
def controller() -> AdaptiveController:
    built = AdaptiveController(Worker(1), ScriptedPolicy([1, 3], 1), wall_time=iter(range(10**6)).__next__)  # type: ignore[arg-type]
    built.build_states()
    return built


def rounds(controller: AdaptiveController, count: int) -> dict[str, Any]:
    """Run rounds whose policy changes the depth each time."""
    for _ in range(count):
        controller.policy.answer = 4 - controller.policy.answer  # type: ignore[attr-defined]
        controller.choose(1)
    return controller.snapshot()


def test_what_the_server_forgot_is_counted(controller: AdaptiveController) -> None:
    log = SwitchLog(rounds(controller, 0))
    log.read(rounds(controller, RECENT_SWITCHES + 7))
    assert (len(log.switches), log.unseen) == (RECENT_SWITCHES, 7)


def test_forced_depths_are_not_the_policys(controller: AdaptiveController) -> None:
    log = SwitchLog(rounds(controller, 1))  # at 3
    controller.force_steps(1)
    rounds(controller, 1)
    controller.force_steps(None)
    log.read(rounds(controller, 2))  # released to 1 or 3, then the other
    assert [to_steps for _, to_steps in log.switches] in ([1], [3])
    assert log.unseen == 0
