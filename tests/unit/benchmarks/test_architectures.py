"""The architectures benchmark: its verdicts, its weights' rules, and what it makes of a log."""

from __future__ import annotations

import math
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from benchmarks.architectures import shapes, verdicts, weights
from benchmarks.architectures.families import FAMILIES, named
from benchmarks.architectures.servers import last_error
from benchmarks.architectures.verdicts import DIFFERENT, EQUAL, TIE, bound, counted, gaps, judged


def answer(tokens: list[int], own: list[float], best: list[float]) -> dict[str, Any]:
    """Return SGLang's answer to a prompt of *tokens* with these log-probabilities."""
    return {
        "meta_info": {
            "input_token_logprobs": [[value, token, None] for value, token in zip(own, tokens, strict=True)],
            "input_top_logprobs": [[[value, 9, None]] for value in best],
        }
    }


def test_gaps_are_those_of_the_output_at_the_end() -> None:
    read = answer([5, 6, 7], [-9.0, -0.5, -0.4], [-0.1, -0.5, -0.1])
    assert gaps(read, [6, 7]) == pytest.approx([0.0, 0.3])


def test_gaps_of_other_tokens_are_refused() -> None:
    with pytest.raises(ValueError, match="other tokens"):
        gaps(answer([5, 6], [0.0, 0.0], [0.0, 0.0]), [7])


def test_a_tie_may_be_as_wide_as_the_reference_shows() -> None:
    assert bound([0.0, 0.1]) == pytest.approx(0.1 * verdicts.MARGIN)
    assert bound([]) == verdicts.SMALLEST_BOUND


def test_equal_texts_need_no_gaps() -> None:
    assert judged([1, 2], [1, 2], None, 0.0).verdict == EQUAL


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


def a_run(kind: str, different: int) -> dict[str, Any]:
    return {"how": kind, "batch": 8, "tokens": 384, DIFFERENT: different}


def record(how: list[str], different: int = 0, **more: Any) -> dict[str, Any]:
    """Return a family's record with a run of each kind."""
    return {"depths": [0, 3], "active": True, "runs": [a_run(kind, different) for kind in how], **more}


ALL = ["depth 0", "depth 3", "switching", "policy"]


def few_unlikely(share: float, different: int = 1) -> dict[str, Any]:
    """Return a record whose texts differ or are ties, with this share of unlikely tokens more than the reference's."""
    found = record(ALL, different=different, reference={"unlikely_tokens": 0.01})
    for run in found["runs"]:
        run["unlikely_tokens"] = 0.01 + share
    return found


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (record(ALL), verdicts.LOSSLESS),
        (record(ALL, different=1), verdicts.WRONG),
        (few_unlikely(0.0), verdicts.OPEN),
        (few_unlikely(0.2), verdicts.WRONG),
        (few_unlikely(0.0, different=0), verdicts.LOSSLESS),
        (few_unlikely(0.2, different=0), verdicts.WRONG),
        (record(ALL[:3], different=1, error="the server ended"), verdicts.WRONG),
        (record(ALL[:3]), verdicts.UNFINISHED),
        (record(ALL, error="the server ended"), verdicts.FAILED),
        (record([], active=False, depths=[]), verdicts.REFUSED),
        ({"family": "not begun"}, verdicts.UNFINISHED),
    ],
)
def test_the_verdict_on_a_family(found: dict[str, Any], verdict: str) -> None:
    assert verdicts.of_family(found) == verdict


@pytest.mark.parametrize(
    ("tokens", "share", "verdict"),
    [
        (384, 0.24, verdicts.LOSSLESS),
        (384, 0.30, verdicts.WRONG),
        (48, 0.30, verdicts.LOSSLESS),
        (48, 0.40, verdicts.WRONG),
    ],
)
def test_a_run_is_compared_with_the_reference_at_its_own_batch(tokens: int, share: float, verdict: str) -> None:
    found = record(ALL, reference={"unlikely_tokens": 0.07, "unlikely_by_batch": {"1": 0.06, "8": 0.24}})
    found["runs"][0].update(tokens=tokens, unlikely_tokens=share)
    for run in found["runs"][1:]:
        run["unlikely_tokens"] = 0.07
    assert verdicts.of_family(found) == verdict


def test_the_last_error_is_the_cause_and_not_its_echo() -> None:
    log = "\n".join(
        [
            "[2026-11-23 21:29:02] Scheduler hit an exception: Traceback (most recent call last):",
            "RuntimeError: mat1 and mat2 shapes cannot be multiplied",
            "RuntimeError: Rank 0 scheduler died during initialization (exit code: -9).",
            "[2026-11-23 21:30:07] kill_process_tree called",
        ]
    )
    assert last_error(log) == "RuntimeError: mat1 and mat2 shapes cannot be multiplied"
    assert last_error("one\ntwo\n") == "two"


@pytest.mark.parametrize(
    ("name", "shape"), [("model.norm.weight", (64,)), ("model.layers.0.q_norm.weight", (2, 32)), ("x.D", (8,))]
)
def test_norms_keep_the_size_of_what_they_scale(name: str, shape: tuple[int, ...]) -> None:
    found = weights.spread(name, shape)
    assert isinstance(found, weights.Constant)
    assert found.value == 1.0


def test_a_linear_layer_keeps_the_size_of_its_input() -> None:
    found = weights.spread("model.layers.0.mlp.down_proj.weight", (64, 256))
    assert isinstance(found, weights.Uniform)
    assert found.high / math.sqrt(3) == pytest.approx(1 / 16)


def test_a_state_decays() -> None:
    found = weights.spread("backbone.layers.0.mixer.A", (32,))
    assert isinstance(found, weights.Uniform)
    assert found.high < 0


def test_seeds_are_of_the_name_alone() -> None:
    assert weights.seed("a") == weights.seed("a") != weights.seed("b")


def test_families_are_named_once_and_unknown_ones_refused() -> None:
    assert len({family.name for family in FAMILIES}) == len(FAMILIES)
    assert [family.name for family in named(["llama", "gpt-oss"])] == ["llama", "gpt-oss"]
    assert named([]) == FAMILIES
    with pytest.raises(ValueError, match="unknown family x"):
        named(["x"])


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_drafts_read_layers_that_their_target_has(family: Any) -> None:
    layers = (family.draft or {}).get("eagle_config", {}).get("eagle_aux_hidden_state_layer_ids", [])
    text = family.target.get("text_config", family.target)
    assert all(0 < layer + 1 < text["num_hidden_layers"] for layer in layers)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_the_frequent_tokens_are_in_every_vocabulary(family: Any) -> None:
    text = family.target.get("text_config", family.target)
    assert text["vocab_size"] == shapes.VOCABULARY > weights.FREQUENT


def test_the_table_has_what_was_measured_and_no_row_of_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "scripts"))
    architectures_table = import_module("architectures_table")
    run = {"how": "depth 0", "tokens": 48, EQUAL: 30, TIE: 2, DIFFERENT: 0, "accepted": 7, "unlikely_tokens": 0.02}
    about = {"gpu": "a GPU", "date": "2026-11-23", "family": "llama", "models": "Llama", "algorithm": "EAGLE3"}
    measured = {
        **{**about, "draft": "EAGLE-3", "error": "Error: a | b", "runs": [run]},
        "startup": {"late_kernel_loads": ["kernel"]},
        "reference": {"unlikely_tokens": 0.01},
    }
    *_, row = architectures_table.lines([measured])
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert "30, 2, 0" in cells
    assert "2.0%, 1.0%" in cells
    assert "failed: Error: a / b" in cells
    assert len(list(architectures_table.lines([]))) == 1
