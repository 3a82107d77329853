"""The demo's check that adaptive output is the output without speculation."""

from __future__ import annotations

import dataclasses

import pytest

from sglang_adaptive.lab.demo.results import Mismatch, Run, mismatches
from sglang_adaptive.lab.demo.words import MISMATCHES_SHOWN, failures
from tests.demo_runs import ema_run, plain_run


def planted(phase: int, prompt: int, tokens: tuple[int, ...]) -> Run:
    """An adaptive run in which one request generated *tokens* instead."""
    run = ema_run()
    outputs = list(run.phases[phase].outputs)
    outputs[prompt] = tokens
    changed = dataclasses.replace(run.phases[phase], outputs=tuple(outputs))
    return dataclasses.replace(run, phases=(*run.phases[:phase], changed, *run.phases[phase + 1 :]))


def test_equal_outputs_pass() -> None:
    assert mismatches(plain_run(), ema_run()) == []


@pytest.mark.parametrize(
    ("tokens", "position", "expected", "got"),
    [
        ((9, *range(1, 10)), 0, 0, 9),
        ((*range(9), 8), 9, 9, 8),
        ((0, 1, 2, 99, 99, *range(5, 10)), 3, 3, 99),
        (tuple(range(7)), 7, 7, None),
        (tuple(range(11)), 10, None, 10),
        ((), 0, 0, None),
    ],
)
def test_the_first_differing_token_is_found(
    tokens: tuple[int, ...], position: int, expected: int | None, got: int | None
) -> None:
    found = mismatches(plain_run(), planted(4, 1, tokens))
    assert found == [Mismatch("EMA", "5-hard-x4", "two", position, expected, got)]


def test_the_line_names_prompt_and_position() -> None:
    (found,) = mismatches(plain_run(), planted(0, 0, (0, 1, 5, *range(3, 10))))
    assert str(found) == "EMA, phase 1-easy-x1, prompt 'one': token 2 is 5, without speculation 2"


def test_a_mismatch_fails_the_demo() -> None:
    run = planted(2, 0, (1,))
    (line,) = failures([plain_run(), run], mismatches(plain_run(), run), moves=True)
    assert "3-easy-x1" in line


def test_many_mismatches_are_counted_and_not_all_printed() -> None:
    wrong = [Mismatch("EMA", "1-easy-x1", "one", index, 0, 1) for index in range(20)]
    lines = failures([plain_run(), ema_run()], wrong, moves=True)
    assert len(lines) == MISMATCHES_SHOWN + 1
    assert "15 more" in lines[-1]


def test_a_missing_request_is_not_taken_for_equality() -> None:
    run = ema_run()
    short = dataclasses.replace(run.phases[0], outputs=run.phases[0].outputs[:1])
    with pytest.raises(ValueError, match="argument 3 is shorter"):
        mismatches(plain_run(), dataclasses.replace(run, phases=(short, *run.phases[1:])))
