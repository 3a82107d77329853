"""Sinks and a window for the draft, stepped round by round with the shipped pair: see `draft_window_steps`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture(scope="module", params=["1", "4"], ids=["pages of 1", "pages of 4"])
def found(request: pytest.FixtureRequest, stepped: Callable[..., Any]) -> dict[str, Any]:
    """Return the results of ``draft_window_steps`` for a page size."""
    return stepped("draft_window_steps", request.param)


def test_texts_are_those_of_a_draft_that_sees_everything(found: dict[str, Any]) -> None:
    """At every depth, while it changes every round, and in both loops."""
    texts = {name: script["whole"]["outputs"] for name, script in found["scripts"].items()}
    assert len(texts) == 5
    for name, script in found["scripts"].items():
        assert script["rows"]["outputs"] == texts[name], name
        assert script["rows"]["free_slots"] == script["whole"]["free_slots"], name
        if not name.startswith("short"):
            assert texts[name] == texts["0 steps, overlap"], name


def test_the_draft_sees_through_its_rows_what_a_mask_would_show(found: dict[str, Any]) -> None:
    for name, script in found["scripts"].items():
        for what in ("drafts", "chosen", "rounds"):
            assert script["rows"][what] == script["masks"][what], f"{name}: {what}"


def test_long_requests_are_drafted_for_in_another_way(found: dict[str, Any]) -> None:
    for name, script in found["scripts"].items():
        assert (script["passes"] > 10) != name.startswith("short"), name
    short, long = found["scripts"]["short, overlap"], found["scripts"]["3 steps, overlap"]
    assert short["rows"]["drafts"] == short["whole"]["drafts"]
    assert long["rows"]["drafts"] != long["whole"]["drafts"]


def test_a_fault_leaves_requests_as_they_are(found: dict[str, Any]) -> None:
    fault, whole = found["fault"], found["scripts"]["3 steps, overlap"]["whole"]
    assert fault["calls"] == 1
    assert (fault["outputs"], fault["drafts"]) == (whole["outputs"], whole["drafts"])
    assert fault["snapshot"]["reason"] == "RuntimeError: planted"
    assert found["snapshot"]["reason"] is None


def test_what_cannot_have_a_window_is_told_why(found: dict[str, Any]) -> None:
    told = found["reasons"]
    for name, words in {
        "MLA": "multi-head latent attention",
        "its own window": "has its own window of 128 tokens",
        "no long requests": "trained on 8192 tokens, and no request has more than 8192",
        "a wide window": "leaves out none of the 96",
        "no length": "set draft_trained_on",
        "auto": "250 of 500",
    }.items():
        assert words in told[name], name
    assert found["told"] == {"passes": 0, "reason": told["a wide window"]}
