"""The kernels that look drafts up, and what the host does instead on a CPU, compared with the definition.

``TRITON_INTERPRET=1`` needs no device.
"""

from __future__ import annotations

import os
from itertools import pairwise
from random import Random

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.traces.lookup import Text
from sglang_adaptive.policy.observation import DRAFTS
from sglang_adaptive.sglang_plugin.stages.lookups import kernel
from sglang_adaptive.sglang_plugin.stages.lookups.texts import Texts
from tests import checks

VOCABULARY = 128_000
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def expected(text: list[int], others: list[list[int]]) -> tuple[int, bool, list[int]]:
    """Return match, whether it is of one of *others*, and drafts after *text*, from the definition."""
    last, copied = len(text) - 1, list[int]()
    (match, end), remembered = Text(text, 0).longest(text, last, last), False
    if match:
        copied = [text[end + 1 + place % (last - end)] for place in range(DRAFTS)]
    for other in others:
        found, end = Text(other, 0).longest(text, last, len(other) - 1)
        if found > match:
            match, remembered, copied = found, True, other[end + 1 : end + 1 + DRAFTS]
    return match, remembered, [*copied, *[0] * (DRAFTS - len(copied))]


def written(kind: str, length: int, seed: int) -> npt.NDArray[np.int64]:
    """Return a text: of rare words, of few words, one that copies stretches of itself, or one of a single token."""
    draw = np.random.default_rng(seed)
    if kind == "one token":
        return np.full(length, 7)
    # Half of all tokens are among the sixteen likeliest ones, about as in real text; 0 is also what absent drafts are.
    text = np.minimum(draw.zipf(1.3, length), 50 if kind == "few words" else VOCABULARY) - 1
    if kind == "copies":
        place = length // 10 + 2
        while place < length:
            size = min(int(draw.integers(5, 400)), length - place, place)
            begin = int(draw.integers(0, place - size + 1))
            text[place : place + size] = text[begin : begin + size]
            place += size + int(draw.integers(1, 30))
    return text


def kernels_look_up_what_the_definition_does() -> None:
    compared = check(checks.device())
    assert compared > (20 if INTERPRETED else 50)


def check(device: str, by_kernels: bool = True) -> int:
    """Compare rounds of several texts with the definition; return the number of lookups."""
    random, compared, from_others = Random(1), 0, 0
    for seed, kind in enumerate(["rare words", "few words", "copies", "one token"] * (1 if INTERPRETED else 3)):
        requests, most = random.choice([1, 3, 5]), 40 if INTERPRETED and kind == "one token" else 700
        slots = random.sample(range(8), requests)
        before = [random.randrange(1, most) for _ in slots]
        rounds = [[random.randrange(1, 9) for _ in slots] for _ in range(2)]
        whole = [written(kind, length + sum(more), 100 * seed + at)
                 for at, (length, *more) in enumerate(zip(before, *rounds, strict=True))]  # fmt: skip
        for others, mine in pairwise(whole):
            if min(len(mine), len(others)) > 8:
                mine[-6:] = others[-8:-2]  # what follows is at the end of a text that grows
        texts = Texts(800, VOCABULARY, device, memory=20_000)
        texts._all.fill_(-9)  # content past a text must not matter
        place, searched, ranges_of = 100, [], list[list[list[int]]]()
        for at, (slot, length, text) in enumerate(zip(slots, before, whole, strict=True)):
            texts.write(slot, 0, text[:length], comes=True)
            pieces = [np.append(text[random.randrange(len(text)) :], [1, 2]) for _ in range(random.randrange(4))]
            ranges = []
            for piece in pieces:
                texts.remember(place, piece)
                ranges.append((place, place + len(piece)))
                place += len(piece)  # the next one follows at once
            running = [(slots[at - 1], 3)] if seed % 2 and requests > 1 else []
            searched.append((running, ranges))
            ranges_of.append([piece.tolist() for piece in pieces])
        texts.search(searched)
        on_device, known, drafts = as_ints(slots, device), before, [[0] * DRAFTS for _ in slots]
        matches = [(0, False)] * requests
        block, parts = ((64, 3), (128, 1), (256, 7))[seed % 3]
        for counts in rounds:
            if not seed % 2 and known is not before:  # no round searches other texts any more
                searched, ranges_of = [([], [])] * requests, [[]] * requests
                texts.search(searched)
            tokens = torch.full((requests, 16), -5, dtype=torch.int32, device=device)
            for at, (text, length, count) in enumerate(zip(whole, known, counts, strict=True)):
                tokens[at, :count] = torch.from_numpy(text[length : length + count])
            given = on_device, as_ints(known, device) - 1, tokens.flatten(), as_ints(counts, device)
            told = looked_up(texts, *given, block, parts) if by_kernels else texts.follow(*given)
            ends = [length + count for length, count in zip(known, counts, strict=True)]
            for at, (slot, text) in enumerate(zip(slots, whole, strict=True)):
                new = text[known[at] : ends[at]].tolist()
                agreed = next((i for i, token in enumerate(new) if token != drafts[at][i]), len(new))
                siblings = [whole[at - 1][3 : ends[at - 1]].tolist() for _ in searched[at][0]]
                match, remembered, drafts[at] = expected(text[: ends[at]].tolist(), siblings + ranges_of[at])
                before_it, was_remembered = matches[at]
                wanted = [before_it, agreed if before_it else 0, match, was_remembered, remembered]
                assert told[at].tolist() == wanted, (kind, at, told[at])
                assert texts.matches[slot].tolist() == [match, remembered], (kind, at)
                assert texts.drafts(on_device, DRAFTS)[at].tolist() == drafts[at], (kind, at)
                matches[at] = match, remembered
                from_others += remembered
                compared += 1
            known = ends
    assert from_others > compared // 8
    return compared


def looked_up(
    texts: Texts, slots: torch.Tensor, known: torch.Tensor, tokens: torch.Tensor, counts: torch.Tensor, block: int,
    parts: int,
) -> torch.Tensor:  # fmt: skip
    """Return what ``Texts.follow`` does on a GPU."""
    told = torch.empty((len(slots), kernel.COLUMNS), dtype=torch.int32, device=texts.device)
    texts.follow_on_device(slots, known, tokens, counts, told, block, parts)
    return told


def as_ints(values: list[int], device: str) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device=device)
