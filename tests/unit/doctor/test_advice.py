"""The doctor's advice, with the measurement that it quotes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sglang_adaptive.doctor import WORTH, advice

ROOT = Path(__file__).parents[3]
TREE = "speculative_eagle_topk=4 (only topk=1 is supported)"


def test_what_adapting_is_worth_is_what_the_performance_page_says() -> None:
    row = re.search(r"against the best single depth, geometric mean \| [^|]* \| ([\d.]+)", _page("measurements.md"))
    assert row is not None and float(row[1]) == pytest.approx(WORTH, abs=0.02)


def test_tree_becomes_a_chain_of_a_depth_that_the_configuration_has() -> None:
    words = advice(TREE, {"steps": 6, "depths": [0, 1, 3, 5]})
    assert words is not None
    assert "--speculative-eagle-topk 1 --speculative-num-steps 5 --speculative-num-draft-tokens 6" in words


def test_tree_whose_size_is_left_to_sglang() -> None:
    words = advice(TREE, {"steps": None, "depths": None})
    assert words is not None and "--speculative-num-steps 5 " in words


def test_reason_that_nothing_is_known_about() -> None:
    assert advice("SGLang turned it off while it resolved the arguments; its log says why", {}) is None


def _page(name: str) -> str:
    return (ROOT / "docs" / name).read_text()
