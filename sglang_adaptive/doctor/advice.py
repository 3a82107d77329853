"""The flags to change in a launch line that would not adapt, and the expected gain."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

USUAL_STEPS = 5
"""Steps of a chain where a line leaves those of its tree to SGLang."""
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

    *drafts* is how the line speculates: ``steps``, and ``depths``, the candidate steps of its configuration, if it
    names one.
    """
    for words, answer in _ANSWERS.items():
        if words in reason:
            return answer if isinstance(answer, str) else answer(drafts)
    return None


def _chain(drafts: Mapping[str, Any]) -> str:
    """Return the flags of a chain that replaces a tree: its steps if they may run, or the most below."""
    wanted = drafts.get("steps") or USUAL_STEPS
    steps = max((depth for depth in drafts.get("depths") or () if 0 < depth <= wanted), default=wanted)
    return (
        f"use a chain: --speculative-eagle-topk 1 --speculative-num-steps {steps} --speculative-num-draft-tokens "
        f"{steps + 1}: {_WORTH_WORDS}"
    )


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
