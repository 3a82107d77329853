"""The flags to change in a launch line that would not adapt, and the expected gain."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

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


WORTH = 1.10
"""Throughput over the best single depth when acceptance and load switch; one H200, simulated acceptance."""

_WORTH_WORDS = (
    f"adapting was worth {WORTH:.2f} times the best single depth when acceptance and load change, and nothing when "
    "neither does (docs/measurements.md)"
)
_EAGLE3 = (
    "with a draft trained for this model it would adapt: --speculative-algorithm EAGLE3 "
    "--speculative-draft-model-path DRAFT --speculative-eagle-topk 1"
)
_BLOCKS = f"a plain DFlash draft of this model would adapt (docs/block-drafters.md), and {_EAGLE3}"
_DSPARK = (
    "a model with an MTP layer, such as DeepSeek V4, adapts with --speculative-algorithm EAGLE "
    f"--speculative-eagle-topk 1; {_EAGLE3}"
)
_ATTENTION_DP = (
    "with attention DP EAGLE, EAGLE3 and NEXTN adapt, but not with SGLANG_ADAPTIVE_OFF=attention-dp, "
    "SGLANG_SCHEDULER_SKIP_ALL_GATHER, SGLANG_ENABLE_DP_SPEC_PREFILL_COORDINATION or "
    "--enable-dp-attention-local-control-broadcast: leave those out (docs/compatibility.md). Other algorithms adapt "
    "only with tensor parallelism: leave out --enable-dp-attention, --dp-size and --attn-dp-size"
)
_SEVERAL_LAYERS = (
    "drafts of several layers adapt only with tensor parallelism: leave out --enable-dp-attention, --dp-size and "
    "--attn-dp-size. With many requests at once attention DP is usually worth more (not measured here)"
)


def advice(reason: str, drafts: Mapping[str, Any]) -> str | None:
    """Return the change for *reason*, why a line would not adapt; None if none is known.

    *drafts* is how the line speculates: ``topk``, ``steps``, ``draft_tokens`` and ``depths``, the candidate steps of
    its configuration, if it names one.
    """
    for words, answer in _ANSWERS.items():
        if words in reason:
            return answer if isinstance(answer, str) else answer(drafts)
    return None


def _chain(drafts: Mapping[str, Any]) -> str:
    topk, tokens = int(drafts["topk"]), drafts.get("draft_tokens")
    steps = _depth(drafts.get("steps"), drafts.get("depths") or ())
    tree = nearest(topk, tokens)
    at_one, at_eight = tokens_to_break_even(tree)
    return (
        f"use a chain: --speculative-eagle-topk 1 --speculative-num-steps {steps} --speculative-num-draft-tokens "
        f"{steps + 1}. A round of a tree with {tree.draft_tokens} draft tokens (topk {tree.topk}) took "
        f"{tree.milliseconds[0]:.1f} ms at batch 1 and {tree.milliseconds[1]:.1f} at 8, one of a chain of "
        f"{CHAIN.steps} steps {CHAIN.milliseconds[0]:.1f} and {CHAIN.milliseconds[1]:.1f} (8B shape, one H200): the "
        f"tree has to yield {at_one:.2f} and {at_eight:.2f} times its tokens. On top, {_WORTH_WORDS}"
    )


def _depth(steps: int | None, depths: Any) -> int:
    """Return the steps from *depths* for a chain that replaces a tree of *steps*: the same, or the largest below."""
    wanted = steps or CHAIN.steps
    fitting = [depth for depth in depths if 0 < depth <= wanted]
    return int(max(fitting, default=wanted))


def _without(*flags: str) -> str:
    return f"leave out {' and '.join(flags)}: {_WORTH_WORDS}"


_ANSWERS: dict[str, str | Callable[[Mapping[str, Any]], str]] = {
    "no --speculative-algorithm": f"{_EAGLE3}; a model with an MTP layer needs --speculative-algorithm EAGLE alone",
    "a prefill server": "nothing to change here: it is the decode server that adapts, so check its line",
    "speculative_eagle_topk=": _chain,
    "attention DP": _ATTENTION_DP,
    "DSPARK": _DSPARK,
    "Domino": _BLOCKS,
    "LiLiCorr": _BLOCKS,
    "NGRAM": "on a server that both prefills and decodes it adapts: leave out --disaggregation-mode",
    "--mamba-backend": _without("--mamba-backend"),
    "enable_multi_layer_eagle": _SEVERAL_LAYERS,
    "enable_two_batch_overlap": _without("--enable-two-batch-overlap"),
    "enable_pdmux": _without("--enable-pdmux"),
    "--enable-unified-memory": _without("--enable-unified-memory"),
    "--enable-hisparse": _without("--enable-hisparse"),
    "--kv-canary": _without("--kv-canary", "--kv-canary-sweep-interval"),
    "Ray's": _without("--use-ray"),
    "LoRA's": "merge the adapter into the model, and " + _without("--enable-lora", "--lora-paths"),
    "SGLANG_ENABLE_PP_SPEC": _without("SGLANG_ENABLE_PP_SPEC"),
}
"""By words of the reason, SGLang's or this package's; the first that occur in it apply."""
