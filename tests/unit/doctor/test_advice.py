"""The doctor's advice, with the measurements that it quotes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from sglang_adaptive.doctor.advice import BATCH_SIZES, CHAIN, TREES, WORTH, advice, nearest, tokens_to_break_even

ROOT = Path(__file__).parents[3]
TREE = "speculative_eagle_topk=4 (only topk=1 is supported)"


def test_round_times_are_the_measured_ones() -> None:
    measured = json.loads((ROOT / "benchmarks" / "results" / "h200" / "tree-rounds.json").read_text())
    at = [measured["batch"].index(size) for size in BATCH_SIZES]
    for shape in (CHAIN, *TREES):
        times = measured["round_ms"][f"{shape.steps}x{shape.topk}x{shape.draft_tokens}"]
        assert shape.milliseconds == tuple(times[index] for index in at)


def test_what_adapting_is_worth_is_what_the_performance_page_says() -> None:
    row = re.search(r"against the best single depth, geometric mean \| [^|]* \| ([\d.]+)", _page("measurements.md"))
    assert row is not None and float(row[1]) == pytest.approx(WORTH, abs=0.02)


def test_tree_becomes_a_chain_of_a_depth_that_the_configuration_has() -> None:
    words = advice(TREE, {"topk": 4, "steps": 6, "draft_tokens": 32, "depths": [0, 1, 3, 5]})
    assert words is not None
    assert "--speculative-eagle-topk 1 --speculative-num-steps 5 --speculative-num-draft-tokens 6" in words
    assert f"{9.634 / 6.239:.2f}" in words and f"{12.812 / 6.661:.2f}" in words


def test_tree_whose_size_is_left_to_sglang() -> None:
    words = advice(TREE, {"topk": 4, "steps": None, "draft_tokens": None, "depths": None})
    assert words is not None and "--speculative-num-steps 5 " in words


def test_nearest_tree_and_its_break_even() -> None:
    assert nearest(4, 16).draft_tokens in (8, 24) and nearest(10, 60).draft_tokens == 60
    for tree in TREES:
        assert all(times > 1.3 for times in tokens_to_break_even(tree))


def test_reason_that_nothing_is_known_about() -> None:
    assert advice("SGLang turned it off while it resolved the arguments; its log says why", {}) is None


def _page(name: str) -> str:
    return (ROOT / "docs" / name).read_text()
