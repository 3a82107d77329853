"""The architectures benchmark: the verdict on a family, the rules for its weights, and the list of families."""

from __future__ import annotations

import math
from typing import Any

import pytest

from benchmarks import architectures
from benchmarks.architectures import FAMILIES, named, verdict_on
from benchmarks.harness import shapes, weights
from benchmarks.harness.texts import DIFFERENT


def a_run(kind: str, different: int) -> dict[str, Any]:
    return {"how": kind, "batch": 8, "tokens": 384, DIFFERENT: different}


def record(how: list[str], different: int = 0, **more: Any) -> dict[str, Any]:
    """Return a family's record with a run of each kind."""
    return {"depths": [0, 3], "active": True, "runs": [a_run(kind, different) for kind in how], **more}


ALL = ["depth 0", "depth 3", "switching", "policy"]


def few_unlikely(share: float, different: int = 1) -> dict[str, Any]:
    """Return a record with differing or tied outputs and *share* more unlikely tokens than the reference's."""
    found = record(ALL, different=different, reference={"unlikely_tokens": 0.01})
    for run in found["runs"]:
        run["unlikely_tokens"] = 0.01 + share
    return found


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (record(ALL), architectures.LOSSLESS),
        (record(ALL, different=1), architectures.WRONG),
        (few_unlikely(0.0), architectures.OPEN),
        (few_unlikely(0.2), architectures.WRONG),
        (few_unlikely(0.0, different=0), architectures.LOSSLESS),
        (few_unlikely(0.2, different=0), architectures.WRONG),
        (record(ALL[:3], different=1, error="the server ended"), architectures.WRONG),
        (record(ALL[:3]), architectures.UNFINISHED),
        (record(ALL, error="the server ended"), architectures.FAILED),
        (record([], active=False, depths=[]), architectures.REFUSED),
        ({"family": "not begun"}, architectures.UNFINISHED),
    ],
)
def test_the_verdict_on_a_family(found: dict[str, Any], verdict: str) -> None:
    assert verdict_on(found) == verdict


@pytest.mark.parametrize(
    ("tokens", "share", "verdict"),
    [
        (384, 0.24, architectures.LOSSLESS),
        (384, 0.30, architectures.WRONG),
        (48, 0.30, architectures.LOSSLESS),
        (48, 0.40, architectures.WRONG),
    ],
)
def test_a_run_is_compared_with_the_reference_at_its_own_batch(tokens: int, share: float, verdict: str) -> None:
    found = record(ALL, reference={"unlikely_tokens": 0.07, "unlikely_by_batch": {"1": 0.06, "8": 0.24}})
    found["runs"][0].update(tokens=tokens, unlikely_tokens=share)
    for run in found["runs"][1:]:
        run["unlikely_tokens"] = 0.07
    assert verdict_on(found) == verdict


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
    assert [family.name for family in named(FAMILIES, ["llama", "gpt-oss"])] == ["llama", "gpt-oss"]
    assert named(FAMILIES, []) == FAMILIES
    with pytest.raises(ValueError, match="unknown family x"):
        named(FAMILIES, ["x"])


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_drafts_read_layers_that_their_target_has(family: Any) -> None:
    layers = (family.draft or {}).get("eagle_config", {}).get("eagle_aux_hidden_state_layer_ids", [])
    text = family.target.get("text_config", family.target)
    assert all(0 < layer + 1 < text["num_hidden_layers"] for layer in layers)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_the_frequent_tokens_are_in_every_vocabulary(family: Any) -> None:
    text = family.target.get("text_config", family.target)
    assert text["vocab_size"] == shapes.VOCABULARY > weights.FREQUENT
