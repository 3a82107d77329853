"""A text ends at the first end within a round's tokens."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from types import SimpleNamespace

END = ord("$")


def _written(text: str, *stops: str, at_once: int = 0) -> str:
    """Return what is kept of *text* when each round brings *at_once* letters, or all of them for 0."""
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.sampling.sampling_params import SamplingParams

    def decode(ids: Sequence[int]) -> str:
        return "".join(map(chr, ids))

    tokenizer = SimpleNamespace(
        encode=lambda text, **_: list(map(ord, text)), decode=decode, eos_token_id=END, additional_stop_token_ids=None
    )
    sampling = SamplingParams(max_new_tokens=64, stop=list(stops))
    sampling.normalize(tokenizer)
    req = Req("a", "", array("q", [1]), sampling)
    req.tokenizer, step = tokenizer, at_once or len(text)
    for begin in range(0, len(text), step):
        new = list(map(ord, text[begin : begin + step]))
        req.output_ids.extend(new)
        req.update_finish_state(len(new))
        if req.finished():
            break
    return decode(req.output_ids_through_stop)


def of_two_stop_strings_the_first_in_the_text_ends_it() -> None:
    assert _written("ab 7", "7", " ") == _written("ab 7", "7", " ", at_once=1) == "ab "


def the_end_of_a_sequence_ends_it_before_a_stop_string() -> None:
    assert _written("ab$cd 7", "7") == _written("ab$cd 7", "7", at_once=1) == "ab$"


def a_stop_string_across_two_rounds_ends_it() -> None:
    assert _written("abcdefg", "def", at_once=4) == _written("abcdefg", "def", at_once=1) == "abcdef"


def a_text_goes_on_to_its_last_token() -> None:
    assert _written("abc", "7", at_once=2) == "abc"
