"""Drafts other than EAGLE's, stepped round by round: a model, the target's KV, and blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from tests.engine.servers import BLOCK_DEPTHS, TIERS
from tests.engine.stepping import SLOTS


def require_one_text(runs: list[dict[str, Any]], depths: Iterable[int]) -> None:
    """Fail unless each run wrote what the first did, which drafted nothing, and the others drafted at all *depths*."""
    without_drafts, *others = runs
    assert without_drafts["ran"] == [0] and without_drafts["accepted"] == 0
    assert {tier for run in others for tier in run["ran"]} == set(depths)
    for found in runs:
        assert found["outputs"] == without_drafts["outputs"]
        assert (found["free_slots"], found["degraded"]) == (SLOTS, None)


@pytest.fixture(scope="module")
def model_pairs(stepped: Callable[..., Any]) -> list[dict[str, Any]]:
    """The results of every zero-step script with an extend in every round, and with held rows."""
    return stepped("worker_steps", "STANDALONE")


def test_drafts_of_a_model_are_those_of_an_extend_in_every_round(model_pairs: list[dict[str, Any]]) -> None:
    for pair in model_pairs:
        wanted, held = pair["wanted"], pair["held"]
        assert wanted["held_rounds"] == 0 < held["held_rounds"] and wanted["drafts"], pair["name"]
        assert held["outputs"] == wanted["outputs"], pair["name"]
        if pair["fault"] is None:
            for what in ("drafts", "rounds", "reason", "free_slots"):
                assert held[what] == wanted[what], f"{pair['name']}: {what}"


def test_a_model_waits_for_as_many_rounds_as_a_state_is_wide(model_pairs: list[dict[str, Any]]) -> None:
    whole = (pair for pair in model_pairs if pair["fault"] is None)
    long, at_the_end = (pair["held"] for pair in whole if pair["script"] == "resume after 32")
    assert long["held_rounds"] > 8 * long["extends"], (long["held_rounds"], long["extends"])
    assert at_the_end["held_rounds"] <= 8 * at_the_end["extends"], "a pass would read beyond the context"


def test_drafts_of_a_model_would_tell_of_missing_rows(model_pairs: list[dict[str, Any]]) -> None:
    faults = [pair for pair in model_pairs if pair["fault"] is not None]
    assert faults and all(pair["held"]["drafts"] != pair["wanted"]["drafts"] for pair in faults)


@pytest.fixture(scope="module")
def frozen(stepped: Callable[..., Any]) -> dict[str, Any]:
    """The outputs of Frozen-KV MTP in both loops and several orders of depths, and the contents of its states."""
    return stepped("worker_steps", "FROZEN_KV_MTP")


def test_a_frozen_kv_depth_a_turn_in_both_loops(frozen: dict[str, Any]) -> None:
    require_one_text(frozen["runs"], TIERS)
    assert all(run["accepted"] > 0 for run in frozen["runs"] if run["ran"] != [0])


def test_frozen_kv_drafts_after_zero_steps_are_those_of_rounds_that_all_draft(frozen: dict[str, Any]) -> None:
    """The draft at a place in the text depends only on the text, not on the rounds that wrote it."""
    drafted: dict[tuple[int, int], list[int]] = {}
    compared = 0
    for run in frozen["runs"]:
        for prompt, position, tokens in run["drafts"]:
            if len(tokens) == 1:
                continue
            known = drafted.setdefault((prompt, position), tokens)
            shared = min(len(known), len(tokens))
            assert known[:shared] == tokens[:shared]
            compared += known is not tokens
            drafted[prompt, position] = max(known, tokens, key=len)
    assert compared > 100


def test_every_frozen_kv_depth_has_backends_of_its_own_and_no_graph_of_another(frozen: dict[str, Any]) -> None:
    built = frozen["built"]
    assert built["backends"] == 2 * built["states"] == 2 * (len(TIERS) + 1)
    assert built["in_force"] and not built["graph_of_another_depth"]
    assert built["kept"] == ["of the live depth", True, True]


@pytest.fixture(scope="module", params=["DFLASH", "DFlash2"])
def blocks(request: pytest.FixtureRequest, stepped: Callable[..., Any]) -> dict[str, Any]:
    """Return the results of a kind of draft: both loops of the scheduler, several orders of widths."""
    return {"draft": request.param, **stepped("worker_steps", request.param)}


def test_a_block_width_a_turn_in_both_loops(blocks: dict[str, Any]) -> None:
    require_one_text(blocks["runs"], BLOCK_DEPTHS)
    assert sum(run["accepted"] for run in blocks["runs"][:-2]) > 100


def test_a_block_depends_on_the_text_and_on_its_width_alone(blocks: dict[str, Any]) -> None:
    """The rounds that wrote the text do not matter, but a token without the draft's keys and values would."""
    known: dict[tuple[str, int, int], list[int]] = {}
    compared = 0
    for run in blocks["runs"]:
        for request, position, block in run["drafts"]:
            first = known.setdefault((request, position, len(block)), block)
            assert first == block
            compared += first is not block and len(block) > 1
    assert compared > 40
    forgetful = [
        (known[request, position, len(block)], block)
        for request, position, block in blocks["forgetful"]["drafts"]
        if (request, position, len(block)) in known
    ]
    assert sum(wanted != block for wanted, block in forgetful) > 10
    held, appends = blocks["runs"][-1]["left_for_later"]
    assert held > 2 * appends > 0
    assert blocks["forgetful"]["outputs"] == blocks["runs"][0]["outputs"]


def test_without_held_rounds_and_after_a_fault_each_round_is_appended(blocks: dict[str, Any]) -> None:
    one_by_one, failed = blocks["at_once"]
    assert one_by_one["kept"] and not failed["kept"] and failed["error"] == "RuntimeError: planted"
    assert one_by_one["drafts"] == blocks["runs"][-2]["drafts"], "those of held rounds"
    for found in blocks["at_once"]:
        assert found["outputs"] == blocks["runs"][0]["outputs"]
        assert (found["free_slots"], found["degraded"]) == (SLOTS, None)


def test_choices_that_were_sampled_are_verified_by_their_chances(blocks: dict[str, Any]) -> None:
    """At every width, finally in memory shared by all widths, which holds zeros between rounds."""
    sampled = blocks["sampled"]
    widths = {(steps + 1, steps) for steps in BLOCK_DEPTHS if steps} if blocks["draft"] == "DFlash2" else set()
    assert {(width, drafts) for width, drafts, _ in sampled["shapes"]} == widths
    assert not any(left for *_, left in sampled["shapes"]) and sampled["memories"] == bool(widths)
    assert [len(ids) for ids in sampled["outputs"].values()] == [40] * 4
    assert (sampled["free_slots"], sampled["degraded"]) == (SLOTS, None)


def test_every_block_width_has_backends_of_its_own(blocks: dict[str, Any]) -> None:
    widths = len(BLOCK_DEPTHS)
    assert blocks["built"] == {"states": widths, "backends": 2 * widths - 1}  # at width 1 nothing is drafted
