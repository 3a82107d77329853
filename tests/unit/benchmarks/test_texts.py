"""Greedy outputs judged by a server without speculation, and sampled tokens by distribution."""

from __future__ import annotations

import math
import random
from collections import Counter
from typing import Any

import pytest

from benchmarks.harness import texts
from benchmarks.harness.texts import DIFFERENT, EQUAL, TIE, Judge, bound, chi_square, counted, gaps, judged


def answer(tokens: list[int], own: list[float], best: list[float]) -> dict[str, Any]:
    return {
        "meta_info": {
            "input_token_logprobs": [[value, token, None] for value, token in zip(own, tokens, strict=True)],
            "input_top_logprobs": [[[value, 9, None]] for value in best],
        }
    }


def test_gaps_are_those_of_the_output_at_the_end_and_of_no_other_tokens() -> None:
    read = answer([5, 6, 7], [-9.0, -0.5, -0.4], [-0.1, -0.5, -0.1])
    assert gaps(read, [6, 7]) == pytest.approx([0.0, 0.3])
    with pytest.raises(ValueError, match="other tokens"):
        gaps(read, [5])


def test_a_tie_may_be_as_wide_as_the_reference_shows() -> None:
    assert bound([0.0, 0.1]) == pytest.approx(0.1 * texts.MARGIN)
    assert bound([]) == texts.SMALLEST_BOUND


@pytest.mark.parametrize(("worst", "verdict"), [(0.1, TIE), (0.3, DIFFERENT)])
def test_every_token_counts_and_not_only_the_first_that_differs(worst: float, verdict: str) -> None:
    text = judged([1, 2, 3], [1, 4, 5], [0.0, 0.05, worst], 0.2)
    assert (text.verdict, text.position, text.expected, text.got) == (verdict, 1, 2, 4)
    assert text.over == (verdict == DIFFERENT)


@pytest.mark.parametrize("got", [[1], [1, 2, 3]])
def test_a_text_of_another_length_is_different(got: list[int]) -> None:
    assert judged([1, 2], got, [0.0] * len(got), 1.0).verdict == DIFFERENT


def test_counted_texts_add_up() -> None:
    texts = [judged([1], [1], None, 0.1), judged([1], [2], [0.05], 0.1), judged([1], [2], [0.5], 0.1)]
    found = counted(texts)
    assert (found[EQUAL], found[TIE], found[DIFFERENT], found["worst_gap"]) == (1, 1, 1, 0.5)
    assert len(found["differences"]) == 1


class Reference:
    """Answer like a server that gives every prompt the same text, whose token is always the most likely."""

    def __init__(self, noise: float = 0.0) -> None:
        self.noise = noise

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        tokens = body["input_ids"]
        own = [0.0 if token == 7 else -5.0 for token in tokens]
        return answer(tokens, [value - self.noise for value in own], [0.0] * len(tokens))

    def generate(self, prompts: list[list[int]], new_tokens: int, **_: object) -> list[dict[str, Any]]:
        return [{"output_ids": [7] * new_tokens, "meta_info": {}} for _ in prompts]


PROMPTS = [[1, 2], [3]]


def judge(noise: float = 0.0) -> Judge:
    found = Judge(Reference(noise), PROMPTS)  # type: ignore[arg-type]
    found.expect("one", [[7] * 10] * 2)
    return found


def test_a_text_is_judged_to_its_end() -> None:
    equal = judge().judge("one", [[7] * 10] * 2)
    assert (equal[EQUAL], equal[DIFFERENT], equal["tokens"], equal["unlikely_tokens"]) == (2, 0, 20, 0.0)
    found = judge().judge("one", [[7] * 10, [7] * 4 + [9] * 6])
    assert (found[EQUAL], found[DIFFERENT], found["tokens_over_bound"]) == (1, 1, 6)
    assert found["unlikely_tokens"] == 0.3


def test_what_the_reference_is_unsure_of_is_a_tie() -> None:
    noisy = judge(noise=3.0)
    assert noisy.bound == 6.0 and noisy.about()["unlikely_tokens"] == 1.0
    noisy._reference.noise = 0.0  # type: ignore[attr-defined]
    assert noisy.judge("one", [[7] * 10, [7] * 4 + [9] * 6])[TIE] == 1


def test_a_doubted_token_that_the_reference_takes_itself_is_a_tie(monkeypatch: pytest.MonkeyPatch) -> None:
    few = [[7] * 10, [7] * 9 + [9]]
    assert judge().judge("one", few)[DIFFERENT] == 1
    monkeypatch.setattr(texts, "takes", lambda *_: True)
    assert judge().judge("one", few)[TIE] == 1


def test_chi_square_finds_another_distribution_and_not_the_same() -> None:
    draw = random.Random(1)
    chances = {token: 2.0 ** -(token + 1) for token in range(12)}
    logs = {token: math.log(chance) for token, chance in chances.items()}
    same = Counter(draw.choices(list(chances), list(chances.values()), k=20_000))
    other = Counter(draw.choices(list(chances), [0.55, *list(chances.values())[1:]], k=20_000))
    assert chi_square(same, logs)["p_value"] > 0.001
    assert chi_square(other, logs)["p_value"] < 1e-6
    assert chi_square(same, logs)["degrees_of_freedom"] == 9  # tokens that occur less than 20 times are pooled
