"""Keeps the texts of a few requests on the device, and the looked-up drafts for each of them."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
import torch

from sglang_adaptive.lookup import DRAFTS, LONGEST, SHORTEST

SLOTS = 64
"""Texts that are kept: twice the requests of a round, so that a paused request finds its text again."""
ABSENT = -1
"""Marks an unknown token; no token equals it."""


class Texts:
    """Texts on a device. Every tensor-parallel rank keeps the same texts, and so looks up the same drafts."""

    def __init__(self, context: int, vocabulary: int, device: Any) -> None:
        """*context* is the longest text, in tokens; ids from *vocabulary* on stand for images and are not drafted."""

        def made(*shape: int) -> torch.Tensor:
            return torch.zeros(shape, dtype=torch.int32, device=device)

        self.device, self._vocabulary = torch.device(device), vocabulary
        self._texts = torch.full((SLOTS, context + 2 * DRAFTS), ABSENT, dtype=torch.int32, device=device)
        self._ends, self.matches, self._drafts = made(SLOTS), made(SLOTS), made(SLOTS, DRAFTS)
        self._best, self._done = made(SLOTS), made(SLOTS)

    def write(self, slot: int, begin: int, tokens: np.ndarray[Any, Any], comes: bool) -> None:
        """Put *tokens* into the text *slot* from *begin* on; *comes* is for a request that was not tracked until now.

        Nothing waits for the device.
        """
        row = self._texts[slot]
        if comes:
            self.matches[slot].zero_()
            row[begin + len(tokens) : begin + len(tokens) + 2 * (DRAFTS + 1)] = ABSENT  # tokens of running rounds
        tokens = tokens[: max(0, len(row) - begin)]
        known = (tokens >= 0) & (tokens < self._vocabulary)
        source = torch.from_numpy(np.where(known, tokens, ABSENT).astype(np.int32))
        if self.device.type == "cuda":
            source = source.pin_memory()
        row[begin : begin + len(tokens)].copy_(source, non_blocking=True)

    def drafts(self, slots: torch.Tensor, count: int) -> torch.Tensor:
        """Return the first *count* drafts of *slots* [b], int64 [b, count]."""
        return self._drafts.index_select(0, slots)[:, :count].to(torch.int64)

    def follow(
        self, slots: torch.Tensor, seq_lens: torch.Tensor, tokens: torch.Tensor, counts: torch.Tensor
    ) -> torch.Tensor:
        """Append a round's tokens, look up the next drafts, and return each request's `Lookup`, int32 [b, 3].

        The arguments are as in ``kernel.append``.
        """
        told = torch.empty((slots.shape[0], 3), dtype=torch.int32, device=self.device)
        if self.device.type != "cuda":
            self._follow_on_host(slots, seq_lens, tokens, counts, told)
            return told
        from sglang_adaptive.sglang_plugin.stages.lookups import kernel

        kernel.append(self._texts, self._ends, slots, seq_lens, tokens, counts, self._drafts, self.matches, told)
        kernel.look_up(self._texts, self._ends, slots, self._drafts, self.matches, told, self._best, self._done)
        return told

    def _follow_on_host(self, slots: Any, seq_lens: Any, tokens: Any, counts: Any, told: Any) -> None:
        rows = tokens.view(slots.shape[0], -1)
        for at, (slot, length, count) in enumerate(
            zip(slots.tolist(), seq_lens.tolist(), counts.tolist(), strict=True)
        ):
            text, new, drafts = self._texts[slot].numpy(), rows[at, :count].numpy(), self._drafts[slot].numpy()
            begin, match = length + 1, int(self.matches[slot])
            end = min(begin + count, len(text))
            text[begin:end] = new[: end - begin]
            compared = min(count, DRAFTS)
            differs = np.flatnonzero(new[:compared] != drafts[:compared])
            agreed = (int(differs[0]) if len(differs) else compared) if match else 0
            now, source = longest_match(text[:end])
            if now:
                drafts[:] = text[source + 1 + np.arange(DRAFTS) % (end - 1 - source)].clip(min=0)
            self.matches[slot] = now
            told[at] = torch.tensor([match, agreed, now], dtype=torch.int32)


def longest_match(text: np.ndarray[Any, Any]) -> tuple[int, int]:
    """Return how many tokens at the end of *text* also occur earlier, and the last place of the latest occurrence.

    (0, 0) below SHORTEST; at most LONGEST tokens are compared.
    """
    last = len(text) - 1
    if last < SHORTEST:
        return 0, 0
    places = np.flatnonzero((text[1:last] == text[last]) & (text[: last - 1] == text[last - 1])) + 1
    if not len(places):
        return 0, 0
    match = SHORTEST
    while match < LONGEST and match <= last:
        further = places[(places >= match) & (text[places - match] == text[last - match])]
        if not len(further):
            break
        places, match = further, match + 1
    return match, int(places[-1])


def tokens_from(prompt: array[int], output: array[int], begin: int) -> np.ndarray[Any, Any]:
    """Return the tokens of a request from *begin* on."""
    # A slice is a copy: SGLang could not append to an array whose memory numpy exports.
    parts = [prompt[begin:], output[max(0, begin - len(prompt)) :]]
    return np.concatenate([np.asarray(part, dtype=np.int64) for part in parts])
