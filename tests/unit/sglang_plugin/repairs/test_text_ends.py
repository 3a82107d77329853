"""Several tokens of a round end a text where they would one by one."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sglang.srt.managers.schedule_batch import Req
from sglang.srt.sampling.sampling_params import SamplingParams

from sglang_adaptive.sglang_plugin.repairs import first_end
from tests.releases import IS_OLDER

END = ord("$")
MOST = 14


class Letters:
    """A tokenizer with one token per letter; one letter ends a text."""

    eos_token_id = END
    additional_stop_token_ids = None

    def encode(self, text: str, **_: Any) -> list[int]:
        return [ord(letter) for letter in text]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(map(chr, ids))


def ended(text: str, stops: list[str], regexes: list[str], cuts: Sequence[int]) -> tuple[str, Any] | None:
    """Return what is kept of *text*, written in rounds up to each of *cuts*, and why it ended; None if it did not."""
    sampling = SamplingParams(max_new_tokens=MOST, stop=stops, stop_regex=regexes)
    sampling.normalize(Letters())
    req = Req("a", "", array("q", [1]), sampling)
    req.tokenizer = Letters()
    for begin, end in pairwise([0, *cuts]):
        req.output_ids.extend(map(ord, text[begin:end]))
        req.update_finish_state(end - begin)
        if req.finished():
            return Letters().decode(req.output_ids_through_stop), req.finished_reason.to_json()
    return None


@pytest.fixture(autouse=True, scope="module")
def repaired() -> Iterator[None]:
    original = Req._locate_str_stop_finished_len

    def located(req: Any, *args: Any, **stop: Any) -> Any:
        return first_end(original, req, *args, **stop)

    Req._locate_str_stop_finished_len = located
    yield
    Req._locate_str_stop_finished_len = original


# SGLang 0.5.22 tests a regex anchored to the end only after a round's last token.
REGEXES = ["a+b", "b ?b", "[ab]{3}", *(() if IS_OLDER else (" $",))]
texts = st.text("ab $", min_size=1, max_size=16)


@given(
    text=texts,
    stops=st.lists(st.text("ab ", min_size=1, max_size=3), max_size=3),
    regexes=st.lists(st.sampled_from(REGEXES), max_size=2),
    rounds=st.lists(st.integers(2, 8), min_size=8, max_size=8),
)
@example(text="aa b", stops=["b", " "], regexes=[], rounds=[8] * 8)
@example(text="a$ b", stops=["b"], regexes=[], rounds=[8] * 8)
@example(text="aab b", stops=[], regexes=["b ?b", "a+b"], rounds=[8] * 8)
def test_rounds_end_a_text_as_tokens_do(text: str, stops: list[str], regexes: list[str], rounds: list[int]) -> None:
    one_by_one = ended(text, stops, regexes, range(1, len(text) + 1))
    cuts = [min(sum(rounds[: n + 1]), len(text)) for n in range(len(rounds))]
    assert ended(text, stops, regexes, sorted(set(cuts))) == one_by_one
