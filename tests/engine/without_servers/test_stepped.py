"""SGLang's scheduler, worker and the shipped pair, stepped round by round: see `stepping`.

Zero steps must not affect the drafts: after a resume they match those of a server that ran the draft every round.
Rounds next to a prefill are not timed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.engine.stepping import SLOTS

PROMPT = 24
"""Tokens of most prompts of `round_scripts`."""

SAME = ("drafts", "rounds", "outputs", "cached", "free_slots")

Pair = dict[str, Any]


@pytest.fixture(scope="module")
def found(stepped: Callable[..., Any]) -> dict[str, Any]:
    """The results of every script."""
    return stepped("round_scripts")


@pytest.fixture
def pairs(found: dict[str, Any]) -> list[Pair]:
    """The results of every script with an extend in every round and with held rows; see `round_scripts`."""
    return found["pairs"]


@pytest.fixture
def sound(pairs: list[Pair]) -> list[Pair]:
    """The pairs without an injected fault."""
    return [pair for pair in pairs if pair["fault"] is None]


def test_drafts_and_outputs_are_those_of_an_extend_in_every_round(sound: list[Pair]) -> None:
    for pair in sound:
        wanted, held = pair["wanted"], pair["held"]
        assert wanted["held_rounds"] == 0 < held["held_rounds"] and wanted["drafts"]
        for what in ("drafts", "rounds", "outputs", "reason"):
            assert held[what] == wanted[what], f"{pair['name']}: {what}"


def test_the_host_knows_the_lengths_after_zero_steps_without_a_wait(sound: list[Pair]) -> None:
    """Also when requests join, leave, are aborted or restart; with overlap, because the other loop always waits."""
    for pair in sound:
        lengths = pair["held"]["lengths"]
        assert lengths["wrong"] == 0 and (lengths["known"] > 0) == ("overlap" in pair["name"]), pair["name"]
    long = next(pair for pair in sound if pair["name"].startswith("resume after 32, every 8, overlap"))
    assert long["held"]["lengths"]["known"] == 2 * 32


def test_extends_are_as_few_as_promised(sound: list[Pair]) -> None:
    """Each of the two zero-step stretches needs one more extend for the rest when drafting resumes."""
    resumed = [pair for pair in sound if pair["script"].startswith("resume after") and not pair["written"]]
    assert len(resumed) > 4
    for pair in resumed:
        rounds = int(pair["script"].split()[-1])
        assert pair["held"]["held_rounds"] == 2 * rounds, pair["name"]
        assert pair["held"]["extends"] == 2 * -(-rounds // pair["every"]), pair["name"]
        assert pair["held"]["cycles"] == 2 * (rounds // pair["every"]), pair["name"]


def test_most_of_what_is_held_can_be_written_alone(sound: list[Pair]) -> None:
    """Three of four, or every second; each but the first covers one round less, and one precedes a resume."""
    in_32 = {3: (2 * 3, 2 * 2), 1: (2 * 2, 2 * 3)}
    for pair in sound:
        held = pair["held"]
        if not pair["written"]:
            assert held["writes"] == 0, pair["name"]
        elif pair["script"] == "resume after 32" and pair["every"] == 8:
            assert (held["writes"], held["extends"]) == in_32[pair["written"]], pair["name"]
        else:
            assert held["writes"] > 0, pair["name"]


def test_shadow_drafts_are_those_of_sglangs_own_extend(sound: list[Pair]) -> None:
    """The draft's choice matches SGLang's own extend in every round, and is compared with the text."""
    right = wrong = 0
    for pair in sound:
        held, chosen = pair["held"], {(first, at): token for first, at, token in pair["wanted"]["chosen"]}
        assert len(held["shadow_accepts"]) == len(held["shadow_drafts"]), pair["name"]
        for hit, (first, at, written, token) in zip(held["shadow_accepts"], held["shadow_drafts"], strict=True):
            assert chosen[first, at] == token, pair["name"]
            if written is not None:  # with overlap a round runs after the last token
                assert hit == (token == written), pair["name"]
                right, wrong = right + hit, wrong + 1 - hit
    assert right > 20 and wrong > 0


def test_drafts_would_tell_of_missing_rows(pairs: list[Pair]) -> None:
    faults = [pair for pair in pairs if pair["fault"] is not None]
    assert len(faults) == 3
    for pair in faults:
        wanted, cold = pair["wanted"], pair["held"]
        assert cold["drafts"] != wanted["drafts"], pair["fault"]
        assert sum(cold["rounds"].values()) > sum(wanted["rounds"].values()), pair["fault"]
        assert cold["outputs"] == wanted["outputs"], pair["fault"]


def test_a_request_that_leaves_keeps_from_the_cache_what_it_owes(sound: list[Pair]) -> None:
    lost = {}
    for pair in sound:
        assert pair["held"]["free_slots"] == pair["wanted"]["free_slots"] == SLOTS, pair["name"]
        lost[pair["name"]] = pair["wanted"]["cached"].get("b", 0) - pair["held"]["cached"].get("b", 0)
        assert 0 <= lost[pair["name"]] < pair["every"], pair["name"]
    assert max(lost.values()) > 0


def test_the_cache_keeps_each_token_that_the_draft_has_processed(sound: list[Pair]) -> None:
    """It never keeps a text's last token: keys are pairs, and the draft's row of a token includes the next one."""
    ends = [pair for pair in sound if pair["script"] == "second turn" and not pair["written"]]
    assert len(ends) == 2  # in both loops
    for pair in ends:
        rounds = len(pair["held"]["outputs"]["a"]) - 1  # the first token comes from the prefill
        pending = rounds % pair["every"]
        assert pair["wanted"]["cached"]["b"] - pair["held"]["cached"]["b"] == pending - 1 > 0, pair["name"]


def test_a_request_that_leaves_early_keeps_its_prompt_in_the_cache(sound: list[Pair]) -> None:
    """The draft has seen no token of the answer: SGLang asserts that the cache keeps what it protects."""
    early = [pair for pair in sound if pair["script"] == "leave early"]
    assert early
    for pair in early:
        assert pair["held"]["cached"]["c"] == PROMPT - 1 < pair["wanted"]["cached"]["c"], pair["name"]


@pytest.mark.parametrize("loop", ["overlap", "normal"])
def test_chunks_of_keys_and_values_alone_draft_as_whole_ones(found: dict[str, Any], loop: str) -> None:
    whole, short = (found["prefills"][f"{loop}, {how}"] for how in ("whole", "short"))
    assert (whole["short"], short["short"], short["error"]) == (0, 3 + 2 + 2, None)
    assert all(short[what] == whole[what] for what in SAME)
    assert whole["cached"]["c"] > 100


def test_drafts_would_tell_of_chunks_without_keys_and_values_and_a_fault_ends_them(found: dict[str, Any]) -> None:
    whole, lost, failing = (found["prefills"][f"overlap, {how}"] for how in ("whole", "never written", "failing"))
    assert (failing["short"], failing["error"]) == (0, "ValueError: a fault")
    assert all(failing[what] == whole[what] for what in SAME)
    assert lost["outputs"] == whole["outputs"] and lost["drafts"] != whole["drafts"]


def test_no_time_is_taken_of_a_round_beside_a_prefill(found: dict[str, Any]) -> None:
    """With overlap, the previous round's result waits during its launch, and the next one's while it runs."""
    for run in found["timed"]:
        assert len(run["seconds"]) > 20
        assert (max(run["seconds"]) < run["launch"]) == run["told"], (run["overlap"], max(run["seconds"]))
