"""Ties: two tokens so close that the order of additions decides between them.

A verify, a plain decode, a prefill in other chunks and another batch size add in different orders. So where an output
diverges from the one without speculation, the log-probabilities of both tokens there, without speculation, show whether
it is a tie. The effect of rounding shows where a reference differs from itself: alone and in a batch, or decoding a
text and reading it as a prompt, which uses other kernels, as a verify does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

EQUAL, TIE, WRONG = "equal", "tie", "wrong"

TOP = 20
"""Likeliest tokens that a reference lists at each position. A token that is not listed is less likely than the last."""
FLOOR = 1e-4
"""Nats: the minimum width of a tie, if a reference's runs agree to the last bit. Float32 had gaps of 6e-6."""
CEILING = 1.0
"""Nats: rounding in a sound model never decides between tokens further apart."""
Answer = Mapping[str, Any]
"""An answer of /generate; a reference's has the log-probabilities that `as_reference` requests."""


@dataclass(frozen=True, slots=True)
class Parting:
    """Where an output diverges from the reference."""

    at: int
    """Tokens before it."""
    own: int | None
    """The token there; None if the output ends."""
    other: int | None
    """The reference's token there."""
    gap: float
    """Nats by which the reference prefers *other* to *own*, at least; infinite if one of the texts ends."""


def as_reference(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request like *body* whose answer has the log-probabilities of each token and of the TOP likeliest.

    These are the log-probabilities that the sampler saw, after penalties, biases and grammars.
    """
    asked = {"return_logprob": True, "logprob_start_len": -1, "top_logprobs_num": TOP}
    return {**body, **asked, "return_prompt_token_ids": True, "stream": False}


def as_prompt(prompt: Sequence[int], text: Sequence[int]) -> dict[str, Any]:
    """Return a request that reads *prompt* and *text* as one prompt, and returns the text's log-probabilities."""
    told = {"return_logprob": True, "logprob_start_len": len(prompt) - 1, "top_logprobs_num": TOP}
    sampling = {"temperature": 0, "max_new_tokens": 1}
    return {"input_ids": [*prompt, *text], "sampling_params": sampling, **told, "stream": False}


def noise_of_reading(answer: Answer, read: Answer) -> float:
    """Return how much the log-probability of a likely token differs between decoding and reading, in nats.

    *read* is the answer to ``as_prompt`` of its text. It means nothing for a request with penalties or biases, which
    no prompt has. At most CEILING / 2: a mixture of experts may read a token with other experts.
    """
    meta, tokens = read["meta_info"], len(answer["output_ids"])
    told = {f"output_{name}": meta[f"input_{name}"][-tokens:] for name in ("token_logprobs", "top_logprobs")}
    return min(noise({"output_ids": answer["output_ids"], "meta_info": told}, answer), CEILING / 2)


def is_whole(answer: Any) -> bool:
    """Return whether an answer is complete and was not aborted."""
    return isinstance(answer, Mapping) and answer["meta_info"]["finish_reason"]["type"] != "abort"


def parting(ours: Sequence[int], reference: Answer) -> Parting | None:
    """Return where *ours* diverges from the text of *reference*; None if they are equal."""
    theirs = reference["output_ids"]
    if list(ours) == list(theirs):
        return None
    pairs = zip(ours, theirs, strict=False)
    at = next((at for at, (own, other) in enumerate(pairs) if own != other), min(len(ours), len(theirs)))
    own, other = (ids[at] if at < len(ids) else None for ids in (ours, theirs))
    if own is None or other is None:
        return Parting(at, own, other, math.inf)
    chances = likely(reference, at)
    return Parting(at, own, other, abs(chances[other] - chances.get(own, min(chances.values()))))


def nearest(ids: Sequence[int], known: Sequence[Answer]) -> tuple[Parting | None, Answer]:
    """Return where *ids* diverge from the answer in *known* that they follow the longest, and that answer."""

    def order(pair: tuple[Parting | None, Answer]) -> tuple[float, float]:
        parted = pair[0]
        return (len(ids) + 1, 0.0) if parted is None else (parted.at, -parted.gap)

    return max(((parting(ids, reference), reference) for reference in known), key=order)


def likely(reference: Answer, at: int) -> dict[int, float]:
    """Return the log-probabilities of the token at *at* and of the TOP likeliest there."""
    meta = reference["meta_info"]
    return {token: _nats(value) for value, token, *_ in (*meta["output_top_logprobs"][at], _chosen(reference, at))}


def chosen_differ(ours: Answer, reference: Answer) -> float:
    """Return the largest difference between the log-probabilities of two texts' tokens, in nats, until they diverge."""
    parted = parting(ours["output_ids"], reference)
    common = len(reference["output_ids"]) if parted is None else parted.at
    pairs = ((_nats(_chosen(ours, at)[0]), _nats(_chosen(reference, at)[0])) for at in range(common))
    return max((abs(one - other) for one, other in pairs), default=0.0)


def noise(one: Answer, other: Answer) -> float:
    """Return how much the log-probability of a likely token differs between two answers of a reference, in nats.

    It is the largest difference over the two likeliest tokens, as long as the text before them is the same.
    """
    parted = parting(one["output_ids"], other)
    same = min(len(one["output_ids"]), len(other["output_ids"])) if parted is None else parted.at
    found = 0.0
    for at in range(same + (parted is not None and not math.isinf(parted.gap))):
        ours, theirs = likely(one, at), likely(other, at)
        # Where the texts diverge, the two likeliest are the tokens that differ.
        for token in sorted(ours, key=lambda token: -ours[token])[:2]:
            if token in theirs and not math.isinf(ours[token] + theirs[token]):
                found = max(found, abs(ours[token] - theirs[token]))
    return found


def width(largest_noise: float) -> float:
    """Return the width of a tie in nats: both tokens may move by the noise."""
    return min(max(FLOOR, 2 * largest_noise), CEILING)


def _chosen(answer: Answer, at: int) -> Any:
    return answer["meta_info"]["output_token_logprobs"][at]


def _nats(value: float | None) -> float:
    """Return a log-probability; SGLang's JSON has null for minus infinity."""
    return -math.inf if value is None else value
