"""Traces with random acceptance, in stretches of good and bad drafts like those of real text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from benchmarks.traces.files import lookups
from sglang_adaptive.lab.traces import CHAIN, WORDS, Trace


def drawn_trace(kinds: Mapping[str, tuple[float, float]], requests: int = 40, tokens: int = 200) -> Trace:
    """Return *requests* of each of *kinds*, of about *tokens* tokens each.

    A kind is the share of correct drafts in a good stretch and in a bad one; a stretch lasts 25 tokens on average.
    Whether a draft is correct does not depend on where its chain started, so ``L`` is the run of correct drafts.
    """
    rng = np.random.default_rng(0)
    lengths = rng.integers(tokens // 2, tokens + tokens // 2, requests * len(kinds)).astype(np.int32)
    category = [kind for kind in kinds for _ in range(requests)]
    accepted = [_accepted(kinds[kind], int(n), rng) for kind, n in zip(category, lengths, strict=True)]
    return Trace(
        {**dict.fromkeys(WORDS, "drawn"), "temperature": 0.0}, tuple(category), length=lengths,
        loop_start=lengths.copy(), accepted=np.concatenate(accepted),
    )  # fmt: skip


def copying_trace(requests: int = 12, tokens: int = 120) -> Trace:
    """Return *requests* whose outputs of about *tokens* tokens copy parts of their prompts, with lookups."""
    rng = np.random.default_rng(0)
    plain = drawn_trace({"edits": (0.6, 0.3)}, requests, tokens)
    found = []
    for length in plain.length.tolist():
        prompt = rng.integers(0, 5000, 200)
        written: list[int] = []
        while len(written) <= length:
            begin = int(rng.integers(0, 150))
            written += [*prompt[begin : begin + int(rng.integers(5, 60))].tolist(), int(rng.integers(0, 5000))]
        found.append(lookups([*prompt.tolist(), *written[: length + 1]], len(prompt), length))
    match, looked_up = np.concatenate(found).T
    return replace(plain, match=match.copy(), looked_up=looked_up.copy())


def _accepted(shares: tuple[float, float], length: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    good = np.cumsum(rng.random(length + CHAIN) < 1 / 25) % 2 == 0
    right = rng.random(length + CHAIN) < np.where(good, *shares)
    runs = np.logical_and.accumulate(np.lib.stride_tricks.sliding_window_view(right, CHAIN), axis=1).sum(axis=1)
    return runs[:length].astype(np.uint8)
