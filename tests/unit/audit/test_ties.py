"""Equal, tie or wrong, by the reference's log probabilities."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_adaptive import ties
from sglang_adaptive.audit.audit import Audit, Compared, Found, Way
from sglang_adaptive.audit.questions import Question


def answer(ids: list[int], *places: dict[int, float]) -> dict[str, Any]:
    """Return an SGLang answer with the most likely tokens of every position, including the chosen one."""
    told = places or tuple({token: -0.1} for token in ids)
    top = [[[value, token, None] for token, value in place.items()] for place in told]
    chosen = [[place[token], token, None] for token, place in zip(ids, told, strict=True)]
    return {"output_ids": ids, "meta_info": {"output_top_logprobs": top, "output_token_logprobs": chosen}}


REFERENCE = answer([5, 6, 7], {5: -0.1, 9: -3.0}, {6: -0.7, 8: -0.75, 4: -5.0}, {7: -0.2, 1: -2.0})


@pytest.mark.parametrize(
    ("ours", "expected"),
    [
        ([5, 6, 7], None),
        ([5, 8, 7], (1, 8, 6, 0.05)),
        ([5, 6, 1], (2, 1, 7, 1.8)),
        ([5, 99, 7], (1, 99, 6, 4.3)),  # not among the most likely: at least as far away as the last of them
        ([5, 6], (2, None, 7, math.inf)),
        ([5, 6, 7, 7], (3, 7, None, math.inf)),
        ([], (0, None, 5, math.inf)),
    ],
)
def test_where_a_text_parts_and_by_how_much(ours: list[int], expected: tuple[Any, ...] | None) -> None:
    found = ties.parting(ours, REFERENCE)
    if expected is None or found is None:
        assert found is expected
    else:
        assert (found.at, found.own, found.other) == expected[:3] and found.gap == pytest.approx(expected[3])


def test_noise_is_that_of_the_two_likeliest_tokens_until_the_texts_part() -> None:
    moved = answer([5, 8, 7], {5: -0.11, 9: -2.9}, {6: -0.74, 8: -0.73, 4: -6.0}, {7: -9.0, 1: -8.0})
    assert ties.noise(REFERENCE, moved) == pytest.approx(0.1)
    assert ties.noise(REFERENCE, REFERENCE) == 0.0
    closed = answer([5], {5: 0.0, 9: None})  # type: ignore[dict-item]
    assert ties.noise(closed, closed) == 0.0, "a grammar that leaves one token is no noise"


def test_what_a_reference_reads_is_compared_with_what_it_decoded() -> None:
    decoded = answer([5, 6], {5: -0.1, 9: -3.0}, {6: -0.7, 8: -0.75})
    body = ties.as_prompt([1, 2, 3], decoded["output_ids"])
    assert (body["input_ids"], body["logprob_start_len"]) == ([1, 2, 3, 5, 6], 2)
    top = [[[-0.1, 5, None], [-3.0, 9, None]], [[-0.78, 6, None], [-0.73, 8, None]]]
    read = {"input_top_logprobs": [None, *top], "input_token_logprobs": [[None, 3, None], top[0][0], top[1][0]]}
    assert ties.noise_of_reading(decoded, {"meta_info": read}) == pytest.approx(0.08)
    top[1][0][0] = -9.0  # other experts
    assert ties.noise_of_reading(decoded, {"meta_info": read}) == ties.CEILING / 2


def test_nothing_is_read_of_a_server_that_does_not_tell_the_tokens_of_a_prompt() -> None:
    audit = Audit(SimpleNamespace(ways=list, client=None), None, [], at_once=1, seed=0)  # type: ignore[arg-type]
    audit._read([REFERENCE])
    assert audit.found.noise == 0.0


def test_a_tie_is_twice_the_noise_within_bounds() -> None:
    assert [ties.width(noise) for noise in (0.0, 0.1, 3.0)] == [ties.FLOOR, 0.2, ties.CEILING]


def test_log_probabilities_are_compared_until_the_texts_part() -> None:
    ours = answer([5, 8], {5: -0.13}, {8: -7.0})
    assert ties.chosen_differ(ours, REFERENCE) == pytest.approx(0.03)


def test_verdicts() -> None:
    question = Question("p", "plain", {})
    found = Found(noise=0.1)
    for number, ids in enumerate(([5, 6, 7], [5, 8, 7], [5, 6, 1], [5]), 1):
        one = Compared(number, Way("3 steps", 1), question, ids, ties.parting(ids, REFERENCE))
        found.compared.append(one)
    found.compared.append(Compared(5, Way("3 steps", 1), question, [], differ=0.3))
    found.compared.append(Compared(6, Way("3 steps", 1), question, [], refused="refused: too long"))
    verdicts = [one.verdict(found.width) for one in found.compared]
    assert verdicts == [ties.EQUAL, ties.TIE, *[ties.WRONG] * 4]
    assert [one.number for one in found.wrong()] == [3, 4, 5, 6]


def test_of_several_answers_that_counts_from_which_a_text_parts_last_and_by_least() -> None:
    near = answer([5, 6, 7], {5: -0.1}, {6: -0.7, 8: -0.71}, {7: -0.2})
    itself = answer([5, 8, 2], {5: -0.1}, {8: -0.7, 6: -0.75}, {2: -0.3, 7: -0.4})
    for known, at, gap in (([REFERENCE, near], 1, 0.01), ([REFERENCE, near, itself], 2, 0.1)):
        parted = ties.nearest([5, 8, 7], known)[0]
        assert parted is not None and parted.at == at and parted.gap == pytest.approx(gap)
    assert ties.nearest([5, 8, 2], [REFERENCE, itself, near]) == (None, itself)
