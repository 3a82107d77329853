"""What an adaptive server lacks, by its arguments."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sglang_adaptive.sglang_plugin.launch.hints import left_out


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({}, []),
        ({"tokenizer_worker_num": 2}, []),
        ({"disaggregation_mode": "decode"}, ["the warm-up"]),
    ],
)
def test_each_argument_names_what_it_takes_away(more: dict[str, Any], words: list[str]) -> None:
    usual = {"tokenizer_worker_num": 1, "disaggregation_mode": "null"}
    found = left_out(SimpleNamespace(**usual | more))
    assert len(found) == len(words)
    assert all(word in phrase for word, phrase in zip(words, found, strict=True))
