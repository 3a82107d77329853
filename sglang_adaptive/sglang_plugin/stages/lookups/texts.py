"""Keeps the texts of a few requests on the device, finished ones, and the looked-up drafts for each request."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import triton

from sglang_adaptive.policy.observation import DRAFTS, LONGEST, SHORTEST
from sglang_adaptive.sglang_plugin.stages.lookups import kernel
from sglang_adaptive.sglang_plugin.stages.lookups.memory import END, SOURCES, Ints, Range

SLOTS = 64
"""Texts that are kept: twice the requests of a round, so that a paused request finds its text again."""
ABSENT = -1
"""Marks an unknown token; no token equals it."""


class Texts:
    """Texts on a device. Every tensor-parallel rank keeps the same texts, and so looks up the same drafts."""

    def __init__(self, context: int, vocabulary: int, device: Any, memory: int = 0) -> None:
        """*context* is the longest text, in tokens; ids from *vocabulary* on stand for images and are not drafted.

        *memory* is the number of tokens for finished texts.
        """

        def made(*shape: int) -> torch.Tensor:
            return torch.zeros(shape, dtype=torch.int32, device=device)

        self.device, self._vocabulary = torch.device(device), vocabulary
        row = context + 2 * DRAFTS
        self._all = torch.full((SLOTS * row + memory,), ABSENT, dtype=torch.int32, device=device)
        self._texts, self._memory = self._all[: SLOTS * row].view(SLOTS, row), self._all[SLOTS * row :]
        self._ends, self.matches, self._drafts = made(SLOTS), made(SLOTS, 2), made(SLOTS, DRAFTS)
        """By slot: the text's end, the match before the next drafts with whether it is from a source, these drafts."""
        self._best, self._done = made(SLOTS).to(torch.int64), made(SLOTS)
        """Zero between rounds."""
        self._sources = made(SLOTS, 1 + SOURCES, 2)
        """By request of a round: the number of its ranges, then their begins and ends from the first token of all texts
        on; the end -1 - slot is that of a running text."""

    def remember(self, begin: int, tokens: Ints) -> None:
        """Put *tokens* of finished texts into the memory from *begin* on."""
        self._copy(self._memory[begin : begin + len(tokens)], self._known(tokens, END))

    def search(self, found: Sequence[tuple[Sequence[Range], Sequence[Range]]]) -> None:
        """Look up drafts of a round's requests in other texts as well.

        Each has running texts, as slots and their first places to search, and ranges of the memory, at most SOURCES.
        """
        places = np.zeros((len(found), 1 + SOURCES, 2), dtype=np.int32)
        stride, memory = self._texts.shape[1], self._texts.numel()
        for place, (running, ranges) in zip(places, found, strict=True):
            ends = [(slot * stride + begin, -1 - slot) for slot, begin in running]
            ends += [(begin + memory, end + memory) for begin, end in ranges]
            place[0, 0] = len(ends)
            place[1 : 1 + len(ends)] = np.array(ends, dtype=np.int32).reshape(-1, 2)
        self._copy(self._sources[: len(found)], places)

    def write(self, slot: int, begin: int, tokens: np.ndarray[Any, Any], comes: bool) -> None:
        """Put *tokens* into the text *slot* from *begin* on; *comes* is for a request that was not tracked until now.

        Nothing waits for the device.
        """
        row = self._texts[slot]
        if comes:
            self.matches[slot].zero_()
            row[begin + len(tokens) : begin + len(tokens) + 2 * (DRAFTS + 1)] = ABSENT  # tokens of running rounds
        tokens = tokens[: max(0, len(row) - begin)]
        self._copy(row[begin : begin + len(tokens)], self._known(tokens, ABSENT))

    def _known(self, tokens: Ints, otherwise: int) -> Ints:
        """Return *tokens* with *otherwise* instead of ids that stand for images."""
        return np.where((tokens >= 0) & (tokens < self._vocabulary), tokens, otherwise)

    def _copy(self, place: torch.Tensor, values: np.ndarray[Any, Any]) -> None:
        source = torch.from_numpy(values.astype(np.int32))
        if self.device.type == "cuda":
            source = source.pin_memory()
        place.copy_(source, non_blocking=True)

    def drafts(self, slots: torch.Tensor, count: int) -> torch.Tensor:
        """Return the first *count* drafts of *slots* [b], int64 [b, count]."""
        return self._drafts.index_select(0, slots)[:, :count].to(torch.int64)

    def follow(
        self, slots: torch.Tensor, seq_lens: torch.Tensor, tokens: torch.Tensor, counts: torch.Tensor
    ) -> torch.Tensor:
        """Append a round's tokens, look up the next drafts, and return each request's `Lookup`, int32 [b, 5].

        *seq_lens* [b] are the tokens with KV before the round, one less than the known ones; *tokens* [b * width] hold
        each request's new tokens first, and *counts* [b] their number.
        """
        told = torch.empty((slots.shape[0], kernel.COLUMNS), dtype=torch.int32, device=self.device)
        follow = self.follow_on_device if self.device.type == "cuda" else self._follow_on_host
        follow(slots, seq_lens, tokens, counts, told)
        return told

    def follow_on_device(
        self, slots: Any, seq_lens: Any, tokens: Any, counts: Any, told: Any, block: int = kernel.BLOCK,
        parts: int | None = None,
    ) -> None:  # fmt: skip
        """Do it with two kernels; *parts* programs look up a request's drafts, *block* places at a time."""
        requests, stride = slots.shape[0], self._texts.stride(0)
        width = tokens.shape[0] // requests
        kernel.append(
            (width, tokens.dtype, counts.dtype, seq_lens.dtype), (requests, 1), self._texts, stride, self._ends, slots,
            seq_lens, tokens, counts, self._drafts, self.matches, told, width, triton.next_power_of_2(width), DRAFTS,
            kernel.COLUMNS,
        )  # fmt: skip
        parts = parts or max(1, kernel.PROGRAMS // requests)
        kernel.look_up(
            (block,), (requests, parts), self._texts, stride, self._ends, slots, self._drafts, self.matches, told,
            self._best, self._done, parts, self._sources, block, SHORTEST, LONGEST, DRAFTS, kernel.PLACE_BITS,
            kernel.RANK_BITS, SOURCES, kernel.COLUMNS,
        )  # fmt: skip

    def _follow_on_host(self, slots: Any, seq_lens: Any, tokens: Any, counts: Any, told: Any) -> None:
        rows = tokens.view(slots.shape[0], -1)
        for at, (slot, length, count) in enumerate(
            zip(slots.tolist(), seq_lens.tolist(), counts.tolist(), strict=True)
        ):
            text, new, drafts = self._texts[slot].numpy(), rows[at, :count].numpy(), self._drafts[slot].numpy()
            begin, (match, remembered) = length + 1, self.matches[slot].tolist()
            end = min(begin + count, len(text))
            text[begin:end] = new[: end - begin]
            self._ends[slot] = end
            compared = min(count, DRAFTS)
            differs = np.flatnonzero(new[:compared] != drafts[:compared])
            agreed = (int(differs[0]) if len(differs) else compared) if match else 0
            told[at, 0], told[at, 1], told[at, 3] = match, agreed, remembered
        for at, slot in enumerate(slots.tolist()):  # all texts are up to date now
            text, drafts, also = self._texts[slot, : int(self._ends[slot])].numpy(), self._drafts[slot].numpy(), 0
            now, source = longest_match(text)
            copied = text[source + 1 + np.arange(DRAFTS) % (len(text) - 1 - source)] if now else text[:0]
            count = int(self._sources[at, 0, 0])
            for first, after in self._sources[at, 1 : 1 + count].tolist():
                if after < 0:
                    after = int(self._ends[-1 - after]) + (-1 - after) * self._texts.shape[1]
                other = self._all[first:after].numpy()
                match_there, source = longest_match(text, other)
                if match_there > now:
                    now, also, copied = match_there, 1, other[source + 1 : source + 1 + DRAFTS]
            drafts[:] = 0
            drafts[: len(copied)] = copied.clip(min=0)
            self.matches[slot] = torch.tensor([now, also])
            told[at, 2], told[at, 4] = now, also


def longest_match(text: np.ndarray[Any, Any], source: np.ndarray[Any, Any] | None = None) -> tuple[int, int]:
    """Return how many tokens at the end of *text* also occur earlier, and the last place of the latest occurrence.

    (0, 0) below SHORTEST; at most LONGEST tokens are compared. With *source*, it is searched up to its last token but
    one instead.
    """
    last = len(text) - 1
    there, before = (text, last) if source is None else (source, len(source) - 1)
    if min(last, before) < SHORTEST:
        return 0, 0
    places = np.flatnonzero((there[1:before] == text[last]) & (there[: before - 1] == text[last - 1])) + 1
    if not len(places):
        return 0, 0
    match = SHORTEST
    while match < LONGEST and match <= last:
        further = places[(places >= match) & (there[places - match] == text[last - match])]
        if not len(further):
            break
        places, match = further, match + 1
    return match, int(places[-1])


def tokens_from(prompt: array[int], output: array[int], begin: int) -> np.ndarray[Any, Any]:
    """Return the tokens of a request from *begin* on."""
    # A slice is a copy: SGLang could not append to an array whose memory numpy exports.
    parts = [prompt[begin:], output[max(0, begin - len(prompt)) :]]
    return np.concatenate([np.asarray(part, dtype=np.int64) for part in parts])
