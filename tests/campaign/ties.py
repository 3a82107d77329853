"""Ties: two tokens so near that adding in another order decides between them.

A verify, a plain decode, a prefill in other chunks and another batch size add in other orders. So where a text parts
from that without speculation, the server without speculation says how far apart the two tokens were.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sglang_adaptive.client import Client, RequestError
from tests.campaign import gpu

NAME = "a tie"
BFLOAT16 = 0.5
"""Nats between two tokens of a tie on a GPU: the largest gap of SmolLM2 on an H200 between batch sizes alone."""
FLOAT32 = 1e-4
"""The same on the CPU engine. A prompt of drawn tokens met one of 6e-6 within an hour (in float64, alone)."""


def near() -> float:
    """Return the nats between two tokens of a tie, in the numbers that this campaign computes in."""
    return BFLOAT16 if gpu.used else FLOAT32


def is_tie(plain: Client, body: Mapping[str, Any], ours: Any, theirs: Any) -> bool:
    """Return whether the first token by which two answers to *body* differ is as good as a tie without speculation."""
    if isinstance(ours, list) and isinstance(theirs, list):
        asked = body.get("text")
        bodies = [{"text": text} for text in asked] if isinstance(asked, list) else [body] * len(ours)
        parts = zip(bodies, ours, theirs, strict=False)
        return all(a["output_ids"] == b["output_ids"] or is_tie(plain, one, a, b) for one, a, b in parts)
    if not (isinstance(ours, dict) and isinstance(theirs, dict)):
        return False
    pairs = enumerate(zip(ours["output_ids"], theirs["output_ids"], strict=False))
    parted = next(((at, pair) for at, pair in pairs if pair[0] != pair[1]), None)
    if parted is None:
        return False
    at, (own, other) = parted
    try:
        read = plain.post("/generate", _reading(body, {"logprob_start_len": 0}))
        prompt = [entry[1] for entry in read["meta_info"]["input_token_logprobs"]]
        more = {"input_ids": [*prompt, *ours["output_ids"][:at]], "token_ids_logprob": [own, other]}
        found = plain.post("/generate", _reading({}, more))["meta_info"]["output_token_ids_logprobs"][0]
    except (RequestError, KeyError, IndexError, TypeError):
        return False
    chances = {entry[1]: entry[0] for entry in found}
    return abs(chances[own] - chances[other]) <= near()


def _reading(body: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    prompt = {name: body[name] for name in ("text", "input_ids") if name in body}
    return {**prompt, "sampling_params": {"temperature": 0, "max_new_tokens": 1}, "return_logprob": True, **more}
