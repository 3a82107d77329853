"""Sampled tokens: how often each occurs, compared by a chi-square test."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

KINDS: tuple[Mapping[str, Any], ...] = (
    {"temperature": 1.0},
    {"temperature": 0.6},
    {"temperature": 1.5, "top_k": 8},
    {"temperature": 1.0, "top_p": 0.8},
    {"temperature": 1.0, "min_p": 0.1},
)
TOKENS, TOGETHER = 5, 30
"""Tokens per sample, and samples per request."""
ALPHA = 1e-6
"""Chance that a comparison calls equal distributions different."""
LEAST = 10
"""Values with fewer occurrences than this in both together are counted as one."""
Texts = Sequence[Sequence[int]]


def request(prompt: Any, how: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request to /generate for TOGETHER samples after *prompt*, text or token ids."""
    sampling = {"max_new_tokens": TOKENS, "ignore_eos": True, "n": TOGETHER, **how}
    return {"text" if isinstance(prompt, str) else "input_ids": prompt, "sampling_params": sampling}


def texts(answers: Iterable[Any]) -> list[list[int]]:
    """Return the tokens of each sample in the answers to such requests."""
    return [answer["output_ids"] for several in answers for answer in several]


def compared(ours: Texts, theirs: Texts) -> Iterator[tuple[str, int, float]]:
    """Yield what was counted, "token" or "pair of tokens", its position from 1, and the `probability`."""
    for at in range(1, TOKENS):
        yield "token", at, probability(*(Counter(ids[at] for ids in drawn) for drawn in (ours, theirs)))
        pairs = (Counter((ids[at - 1], ids[at]) for ids in drawn) for drawn in (ours, theirs))
        yield "pair of tokens", at, probability(*pairs)


def probability(ours: Counter[Any], theirs: Counter[Any]) -> float:
    """Return the chance of a difference this large if both have the same distribution: Pearson's test of two rows."""
    from scipy.stats import chi2_contingency  # seconds to import

    common = [value for value in {**ours, **theirs} if ours[value] + theirs[value] >= LEAST]
    rest = [sum(counts.values()) - sum(counts[value] for value in common) for counts in (ours, theirs)]
    columns = [*((ours[value], theirs[value]) for value in common), tuple(rest)]
    columns = [column for column in columns if sum(column)]
    if len(columns) < 2:
        return 1.0
    return float(chi2_contingency(list(zip(*columns, strict=True)), correction=False).pvalue)
