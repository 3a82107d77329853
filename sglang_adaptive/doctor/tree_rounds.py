"""Round times of trees of drafts and of chains: an excerpt of benchmarks/results/h200/tree-rounds.json.

Milliseconds on one H200, Llama-3.1-8B shape with its EAGLE-3 shape, dummy weights, CUDA graphs, SGLang 0.5.23.
"""

from __future__ import annotations

from dataclasses import dataclass

BATCH_SIZES = (1, 8)


@dataclass(frozen=True, slots=True)
class Round:
    """One shape of drafts and the median time of its rounds."""

    steps: int
    topk: int
    draft_tokens: int
    milliseconds: tuple[float, float]
    """At each of BATCH_SIZES."""


CHAIN = Round(5, 1, 6, (6.239, 6.661))
TREES = (
    Round(3, 4, 8, (8.859, 9.099)),
    Round(5, 2, 8, (9.401, 10.417)),
    Round(7, 4, 24, (10.607, 12.098)),
    Round(6, 8, 32, (9.634, 12.812)),
    Round(8, 10, 60, (10.663, 20.006)),
)
"""On SGLang's attention backend for trees. With triton, 5x4x16 takes 7.260 and 8.690 ms."""


def nearest(topk: int, draft_tokens: int | None) -> Round:
    """Return the measured tree closest to *draft_tokens* tokens; with None, the closest to *topk*."""
    if draft_tokens is None:
        return min(TREES, key=lambda tree: abs(tree.topk - topk))
    return min(TREES, key=lambda tree: (abs(tree.draft_tokens - draft_tokens), abs(tree.topk - topk)))


def tokens_to_break_even(tree: Round) -> tuple[float, float]:
    """Return the ratio of tokens, over a chain's round, at which *tree* is as fast, at each of BATCH_SIZES."""
    at_one, at_eight = (t / c for t, c in zip(tree.milliseconds, CHAIN.milliseconds, strict=True))
    return at_one, at_eight
