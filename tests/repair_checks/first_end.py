"""Several tokens of a round end a text where they would one by one."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.releases import IS_OLDER

END = ord("$")
MOST = 14
# SGLang 0.5.22 tests a regex anchored to the end only after a round's last token.
REGEXES = ["a+b", "b ?b", "[ab]{3}", *(() if IS_OLDER else (" $",))]


def rounds_end_a_text_as_tokens_do() -> None:
    _rounds_end_it()


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    text=st.text("ab $", min_size=1, max_size=16),
    stops=st.lists(st.text("ab ", min_size=1, max_size=3), max_size=3),
    regexes=st.lists(st.sampled_from(REGEXES), max_size=2),
    rounds=st.lists(st.integers(2, 8), min_size=8, max_size=8),
)
@example(text="aa b", stops=["b", " "], regexes=[], rounds=[8] * 8)
@example(text="a$ b", stops=["b"], regexes=[], rounds=[8] * 8)
@example(text="aab b", stops=[], regexes=["b ?b", "a+b"], rounds=[8] * 8)
def _rounds_end_it(text: str, stops: list[str], regexes: list[str], rounds: list[int]) -> None:
    one_by_one = _ended(text, stops, regexes, range(1, len(text) + 1))
    cuts = sorted({min(sum(rounds[: n + 1]), len(text)) for n in range(len(rounds))})
    assert _ended(text, stops, regexes, cuts) == one_by_one, (text, stops, regexes, cuts)


def _ended(text: str, stops: list[str], regexes: list[str], cuts: Sequence[int]) -> tuple[str, Any] | None:
    """Return what is kept of *text*, written in rounds up to each of *cuts*, and why it ended; None if it did not.

    A letter is a token, and one letter ends a text.
    """
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.sampling.sampling_params import SamplingParams

    def decode(ids: Sequence[int]) -> str:
        return "".join(map(chr, ids))

    tokenizer = SimpleNamespace(
        encode=lambda text, **_: list(map(ord, text)), decode=decode, eos_token_id=END, additional_stop_token_ids=None
    )
    sampling = SamplingParams(max_new_tokens=MOST, stop=stops, stop_regex=regexes)
    sampling.normalize(tokenizer)
    req = Req("a", "", array("q", [1]), sampling)
    req.tokenizer = tokenizer
    for begin, end in pairwise([0, *cuts]):
        req.output_ids.extend(map(ord, text[begin:end]))
        req.update_finish_state(end - begin)
        if req.finished():
            return decode(req.output_ids_through_stop), req.finished_reason.to_json()
    return None
