"""Lookups, compared with the written-out definition: every earlier place is tried, and the drafts are made."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from benchmarks import lookup_memory
from benchmarks.traces.lookup import Round, Text
from benchmarks.traces.replay import rounds
from sglang_adaptive.policy.observation import DRAFTS, LONGEST, SHORTEST


def agreement(text: list[int], one: int, other: int) -> int:
    """Return how many tokens up to *one* equal those up to *other*, at most LONGEST; *one* is the earlier place."""
    found = 0
    while found < LONGEST and found <= one and text[one - found] == text[other - found]:
        found += 1
    return found


def written_out(text: list[int], place: int) -> Round:
    match, source = max(((agreement(text, q, place), q) for q in range(place)), default=(0, -1))
    drafts: list[int] = []
    if match >= SHORTEST:
        known = text[: place + 1]
        for _ in range(DRAFTS):
            drafts.append(known[source + 1])
            known.append(known[source + 1])
            source += 1
    follows = text[place + 1 :]
    accepted = 0
    while accepted < min(len(drafts), len(follows)) and drafts[accepted] == follows[accepted]:
        accepted += 1
    return Round(match if match >= SHORTEST else 0, min(accepted + 1, len(follows)))


def drawn(seed: int) -> tuple[list[int], int]:
    random = Random(seed)
    words, text = random.choice([2, 3, 8, 40]), [random.randrange(3) for _ in range(2)]
    length = random.randrange(3, 260)
    while len(text) < length:
        if random.random() < 0.15:
            begin = random.randrange(len(text))
            text += text[begin : begin + random.randrange(1, 120)]
        elif random.random() < 0.05:
            text += [random.randrange(words)] * random.randrange(1, 90)  # a loop
        else:
            text.append(random.randrange(words))
    return text, random.randrange(len(text) + 1)


@pytest.mark.parametrize("seed", range(60))
def test_every_round_is_the_one_of_the_definition(seed: int) -> None:
    text, prompt = drawn(seed)
    indexed = Text(text, prompt)
    wanted = {place: written_out(text, place) for place in range(prompt, len(text) - 1)}
    for place, found in wanted.items():
        assert indexed.at(place) == found, (place, prompt, text)
    place = prompt
    for found in Text(text, prompt).rounds():
        assert found == wanted[place]
        place += found.tokens
    assert place == max(prompt, len(text) - 1)


def test_of_many_places_that_agree_as_far_as_is_looked_at_the_latest_counts() -> None:
    copied = list(range(100, 100 + LONGEST))
    text = [token for piece in range(1100) for token in (*copied, 500 + piece, 7)] + [*copied, 1599, 7]
    place = len(text) - 3
    assert Text(text, place).at(place) == written_out(text, place) == Round(LONGEST, 2)


def test_of_many_places_the_one_that_agrees_furthest_counts() -> None:
    copied = list(range(100, 160))
    text = [*copied, 9, 9, *(token for piece in range(1100) for token in (*copied[-9:], 500 + piece, 7)), *copied, 9, 9]
    place = len(text) - 3
    assert Text(text, place).at(place) == written_out(text, place) == Round(60, 2)


@pytest.mark.parametrize(("text", "prompt"), [([], 0), ([4], 1), ([4], 0), ([4, 4], 1), ([1, 2, 3], 3)])
def test_an_output_without_a_decoded_token_has_no_round(text: list[int], prompt: int) -> None:
    assert list(Text(text, prompt).rounds()) == []


@pytest.mark.parametrize(("match", "taken"), [(99, 13), (5, 11), (2, 10), (None, 10)])
def test_lookups_take_the_place_of_drafts_where_enough_tokens_match(match: int | None, taken: int) -> None:
    """Of three drafts two are right; a lookup matches four tokens after the first round, and has three right."""
    tokens, accepted = np.array([*range(8)] * 6), np.full(40, 2, np.uint8)
    assert len(rounds(accepted[:-1], 3)) == 13
    text = lookup_memory.Text(tokens, 8, accepted)
    assert len(lookup_memory.played([text], 1, 0, lookup_memory.Mixed(3, match))) == taken
