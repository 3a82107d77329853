"""Lookups, stepped round by round with the shipped pair: see `lookup_steps`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

from sglang_adaptive.policy.observation import DRAFTS
from sglang_adaptive.policy.throughput.lookups import KINDS
from sglang_adaptive.sglang_plugin.stages.lookups.rounds import UNDER_WAY
from sglang_adaptive.sglang_plugin.stages.lookups.texts import longest_match
from tests.engine.lookup_steps import LOOPS, SETUPS, SHADOWS
from tests.engine.servers import TIERS

WIDE = tuple(KINDS)


@pytest.fixture(scope="module")
def of(stepped: Callable[..., Any]) -> Callable[[str], dict[str, Any]]:
    """Return the results of ``lookup_steps`` for a setup."""
    return cache(lambda setup: stepped("lookup_steps", setup))


@pytest.fixture(params=SETUPS)
def found(request: pytest.FixtureRequest, of: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    return of(request.param)


@pytest.fixture
def most(of: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    """The results of the setup with most scripts."""
    return of("pages of 1")


def test_a_line_without_steps_starts_at_a_depth_that_drafts(found: dict[str, Any]) -> None:
    assert found["launch"] == TIERS[len(TIERS) // 2]
    assert found["tiers"] == sorted([*TIERS, *WIDE])


def test_texts_are_those_of_plain_decoding(found: dict[str, Any]) -> None:
    """Held, switching every round, or by the policy; with ten requests, aborts and retraction; in both loops."""
    for kind in ("scripts", "crowds"):
        for name, script in found.get(kind, {}).items():
            plain = found[kind][f"0 steps, {name.split(', ')[1]}"]
            for rid, text in plain["outputs"].items():
                assert script["outputs"][rid] == text or rid in aborted(kind), f"{name}: {rid}"
            assert script["free_slots"] == plain["free_slots"], name


def test_requests_are_retracted_in_a_small_pool(of: Callable[[str], dict[str, Any]]) -> None:
    assert all(of("pool")["scripts"][f"{name}, overlap"]["retracted"] > 0 for name in ("0 steps", "31 lookups"))


def aborted(kind: str) -> str:
    return "d" if kind == "crowds" else ""


def test_copied_text_is_verified_in_runs(found: dict[str, Any]) -> None:
    for name, script in found["scripts"].items():
        rounds = [one for one in script["rounds"] if one["steps"] in WIDE]
        if name.startswith("31"):
            assert any(count > 7 for one in rounds for count in one["counts"]), f"{name}: nothing was copied"
        assert bool(rounds) is not name.startswith("0 steps") or name.startswith("policy"), name


def test_larger_batches_look_up_fewer_drafts(most: dict[str, Any]) -> None:
    for script in most["crowds"].values():
        assert {len(one["requests"]) for one in script["rounds"]} >= {2, 9}
        assert all(len(one["requests"]) <= KINDS[one["steps"]][-1] for one in script["rounds"] if one["steps"] in WIDE)
        assert all(one["lookups"] for one in script["rounds"])
    rounds = most["crowds"]["8 lookups, overlap"]["rounds"]
    copied = [one["counts"] for one in rounds if len(one["requests"]) >= 8]
    assert sum(counts.count(8) for counts in copied) > 4, "nothing was copied"


def test_rounds_tell_what_the_text_says(found: dict[str, Any]) -> None:
    """For each round within the text: the match before it, and how many drafts were correct."""
    compared = 0
    for script in (*found["scripts"].values(), *found.get("crowds", {}).values()):
        if script["retracted"]:
            continue  # a request that comes back is tracked twice
        known = {rid: len(prompt) + 1 for rid, prompt in script["prompts"].items()}
        seen: dict[str, int] = {}
        before: dict[str, tuple[int, list[int]]] = {}
        for one in script["rounds"]:
            told = dict(zip(one["requests"], one["lookups"], strict=False))
            seen = {rid: seen.get(rid, 0) + 1 for rid in told}
            for rid, count in zip(one["requests"], one["counts"], strict=True):
                text = np.array(script["prompts"][rid] + script["outputs"][rid])
                begin, end = known[rid], known[rid] + count + 1
                known[rid] = end
                if end > len(text) or seen.get(rid, 0) <= UNDER_WAY:
                    continue
                match, source = longest_match(text[:end])
                assert told[rid][2] == match, (rid, end)
                if rid in before and seen[rid] > UNDER_WAY + 1:
                    had, drafts = before[rid]
                    new = text[begin:end].tolist()
                    agreed = next((at for at, token in enumerate(new) if token != drafts[at]), len(new)) if had else 0
                    assert told[rid][:2] == [had, agreed], (rid, end)
                    compared += 1
                drafts = (source + 1 + np.arange(DRAFTS) % max(1, end - 1 - source)).tolist()
                before[rid] = match, text[drafts].tolist()
            before = {rid: kept for rid, kept in before.items() if rid in told}
    assert compared > 50


@pytest.mark.parametrize("loop", LOOPS)
def test_finished_texts_are_remembered(of: Callable[[str], dict[str, Any]], loop: str) -> None:
    """Not those of another key, of before a flush, or of an aborted request; a running one's is seen beside it."""
    script = of("pages of 4")["memory"][f"memory, {loop}"]
    outputs = script["outputs"]
    assert outputs["first"] == outputs["second"] == outputs["keyed"] == outputs["flushed"]
    assert outputs["after"] == outputs["ahead"] == outputs["behind"]
    of_memory: Counter[str] = Counter()
    for one in script["rounds"]:
        for rid, count, lookup in zip(one["requests"], one["counts"], one["lookups"], strict=False):
            of_memory[rid] += count * lookup[3]
    assert of_memory["second"] > 40
    assert of_memory["behind"] > 8
    assert not any(of_memory[rid] for rid in ("first", "keyed", "aborted", "after", "flushed", "ahead"))


@pytest.mark.parametrize("loop", LOOPS)
def test_zero_steps_check_what_the_draft_proposed_after_lookups(most: dict[str, Any], loop: str) -> None:
    """They match the first draft's verdict in one-step rounds that start at the same place of the text."""
    drafted, checked = (most["shadows"][f"{name}, {loop}"]["rounds"] for name in SHADOWS)
    right = {
        place: count for one, places in placed(drafted) for place, count in zip(places, one["counts"], strict=True)
    }
    compared = 0
    for (one, places), (before, _) in zip(placed(checked)[1:], placed(checked), strict=False):
        if one["steps"] == 0 and before["steps"] == WIDE[-1] and one["requests"] == before["requests"]:
            assert len(one["shadow_accepts"]) == len(places)
            told = zip(places, one["shadow_accepts"], strict=True)
            known = [(right[place], accept) for place, accept in told if place in right]
            assert all(count == accept for count, accept in known)
            compared += len(known)
    assert compared > 3


def placed(rounds: list[dict[str, Any]]) -> list[tuple[dict[str, Any], list[tuple[str, int]]]]:
    """Return each round with the place in each request's text where it starts."""
    written: Counter[str] = Counter()
    found = []
    for one in rounds:
        found.append((one, [(rid, written[rid]) for rid in one["requests"]]))
        for rid, count in zip(one["requests"], one["counts"], strict=True):
            written[rid] += count + 1
    return found


def test_a_grammar_has_no_wide_rounds(most: dict[str, Any]) -> None:
    rounds = most["grammar"]["rounds"]
    assert max(one["steps"] for one in rounds) == 7
    assert not any(one["lookups"] for one in rounds if "g" in one["requests"]), "the policy would choose lookups"


def test_a_fault_ends_lookups_and_nothing_else(most: dict[str, Any]) -> None:
    fault = most["fault"]
    assert fault["outputs"] == most["scripts"]["0 steps, overlap"]["outputs"]
    assert fault["error"] == "RuntimeError: planted"
    assert fault["candidates"] == [0, 1, 3, 7]
    assert fault["calls"] == 7, "it was asked again"


def test_what_cannot_look_up_is_told_why(most: dict[str, Any]) -> None:
    assert most["reasons"]["none"] is None
    assert all(name in most["reasons"][name] for name in ("sparse attention", "latent attention"))
