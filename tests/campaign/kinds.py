"""Requests of every kind, as data: what is sent, and how its answer compares with that without speculation."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sglang_adaptive.lab.cpu_engine import models
from tests.campaign.servers import LENGTH

TEXTS = (*models.prompts("easy"), *models.prompts("hard"))
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "count": {"type": "integer"}},
    "required": ["name", "count"],
}
SPOKEN_OF = "token_ids_logprob"
GRAMMAR = 'root ::= ("yes" | "no") (" " [a-z]{1,6}){2,9} "."'


def text(draw: random.Random) -> str:
    return draw.choice(TEXTS)


def long_text(draw: random.Random) -> str:
    """Return text that takes several prefill chunks."""
    return " ".join(draw.choices(TEXTS, k=draw.randint(8, 24)))


def repeated_text(draw: random.Random) -> str:
    """Return text that appears twice and starts again, so that lookups draft its continuation."""
    once = " ".join(draw.sample(TEXTS, 3))
    return " ".join((once, once, once[: draw.randint(20, 60)]))


def tokens(least: int, most: int) -> Callable[[random.Random], list[int]]:
    """Return a function that draws *least* to *most* token ids, all of them letters and the like."""
    return lambda draw: [draw.randrange(64, 120) for _ in range(draw.randint(least, most))]


@dataclass(frozen=True)
class Kind:
    """One kind of request. A value that is a function is drawn anew for each request."""

    sampling: Mapping[str, Any] = field(default_factory=dict)
    body: Mapping[str, Any] = field(default_factory=dict)
    prompt: Callable[[random.Random], Any] = text
    new_tokens: Callable[[random.Random], int] = lambda draw: draw.randint(1, 64)
    ignore_eos: bool = True
    shorter: int = 0
    """Tokens that speculation may omit at the context's end: SGLang reserves a round's, at a fixed depth as well."""

    counts_tokens: bool = False
    """Whether the text depends on token counts.

    SGLang's mixed prefills (``--enable-mixed-chunk``) count too few tokens of running requests, and such differences
    are not losses.
    """

    seeded: bool = False
    """Whether it samples with a seed, which needs a server with ``--enable-deterministic-inference``."""

    def draw(self, draw: random.Random) -> dict[str, Any]:
        """Return the body of a request to /generate; greedy unless it has a seed."""
        prompt = self.prompt(draw)
        first = prompt if isinstance(prompt, str) or not prompt else prompt[0]
        sampling = {"temperature": 0, "max_new_tokens": self.new_tokens(draw), "ignore_eos": self.ignore_eos}
        return {
            "text" if isinstance(first, str) else "input_ids": prompt,
            "sampling_params": sampling | _drawn(self.sampling, draw),
            **_drawn(self.body, draw),
        }


def _drawn(values: Mapping[str, Any], draw: random.Random) -> dict[str, Any]:
    return {name: value(draw) if callable(value) else value for name, value in values.items()}


def _uniform(low: float, high: float) -> Callable[[random.Random], float]:
    return lambda draw: draw.uniform(low, high)


def _whole(low: int, high: int) -> Callable[[random.Random], int]:
    return lambda draw: draw.randint(low, high)


def _bias(draw: random.Random) -> dict[str, int]:
    return {str(draw.randrange(64, 120)): draw.choice((-100, -2, 3))}


def _stops(draw: random.Random) -> list[str]:
    """Return strings of several tokens, which start in one round and end in another."""
    words = " ".join(draw.choices(TEXTS, k=3))
    starts = [draw.randrange(len(words) - 6) for _ in range(3)]
    return [words[at : at + draw.randint(1, 5)] for at in starts]


def _seeded(**sampling: Any) -> dict[str, Any]:
    """Return sampling parameters with a seed; *sampling* has top-k or top-p.

    Without either, a seed's text depends in stock SGLang 0.5.23 on whether another request of the batch has one of
    them.
    """
    return {
        "temperature": _uniform(0.5, 2.5),
        "sampling_seed": lambda draw: draw.randrange(2**31),
        **sampling,
    }


_penalty, _repetition = _uniform(0.1, 2), _uniform(1.05, 1.5)
_top_k, _top_p, _least = _whole(2, 40), _uniform(0.5, 0.98), _whole(1, 12)


KINDS: dict[str, Kind] = {
    "plain": Kind(),
    "long prompt, in several chunks": Kind(prompt=long_text, shorter=8),  # some reach the end of the context
    "text that is copied": Kind(prompt=repeated_text),
    "text that others had": Kind(prompt=lambda draw: TEXTS[draw.randrange(3)], new_tokens=lambda draw: 96),
    "ends by itself": Kind(ignore_eos=False),
    "stop strings": Kind({"stop": _stops}),
    "stop strings that stay": Kind({"stop": _stops, "no_stop_trim": True}),
    "stop tokens": Kind({"stop_token_ids": lambda draw: draw.sample(range(64, 120), 6)}),
    "stop by regex": Kind({"stop_regex": "[aeiou] [a-z]{2}"}),
    "min tokens": Kind({"stop": [" ", "e"], "min_new_tokens": _least}, counts_tokens=True),
    "regex": Kind({"regex": "[a-z]{3,8}( [a-z]{2,7}){2,9}\\."}, ignore_eos=False),
    "JSON schema": Kind({"json_schema": json.dumps(SCHEMA)}, ignore_eos=False),
    "EBNF": Kind({"ebnf": GRAMMAR}, ignore_eos=False),
    "several samples": Kind({"n": _whole(2, 4)}),
    "several prompts": Kind(prompt=lambda draw: draw.sample(TEXTS, 3)),
    "logit bias": Kind({"logit_bias": _bias}),
    "logprobs": Kind(body={"return_logprob": True, "logprob_start_len": lambda draw: draw.choice((-1, 0, 1))}),
    "top logprobs": Kind(body={"return_logprob": True, "top_logprobs_num": 4}),
    "logprobs of given tokens": Kind(body={"return_logprob": True, SPOKEN_OF: lambda draw: draw.sample(range(99), 3)}),
    "frequency penalty": Kind({"frequency_penalty": _penalty}, counts_tokens=True),
    "presence penalty": Kind({"presence_penalty": _penalty}, counts_tokens=True),
    "repetition penalty": Kind({"repetition_penalty": _repetition}, counts_tokens=True),
    "two penalties": Kind({"frequency_penalty": _penalty, "presence_penalty": _penalty}, counts_tokens=True),
    "a penalty, a bias and a least length": Kind(
        {"repetition_penalty": _repetition, "logit_bias": _bias, "min_new_tokens": _least},
        new_tokens=_whole(12, 64),
        ignore_eos=False,
        counts_tokens=True,
    ),
    "one token as prompt": Kind(prompt=tokens(1, 1)),
    "two tokens as prompt": Kind(prompt=tokens(2, 2)),
    "prompt of one chunk, one less, one more": Kind(prompt=lambda draw: tokens(255, 257)(draw)),
    "no new token": Kind(new_tokens=lambda draw: 0),
    "one new token": Kind(new_tokens=lambda draw: 1),
    "two new tokens": Kind(new_tokens=lambda draw: 2),
    "answer up to the context's end": Kind(
        prompt=tokens(LENGTH - 60, LENGTH - 20), new_tokens=lambda draw: 500, shorter=8
    ),
    "prompt past the context": Kind(prompt=tokens(LENGTH - 1, LENGTH + 300)),
    "no prompt": Kind(prompt=lambda draw: []),
    # Token ids that the model lacks are not tested: they also end a scheduler of stock SGLang 0.5.23.
    "a bias of a token that is none": Kind({"logit_bias": {"100000": 1.0}}),
    "a broken regex": Kind({"regex": "(["}),
    "a broken grammar": Kind({"ebnf": "root ::= ("}),
    "negative new tokens": Kind(new_tokens=lambda draw: -3),
    "priority": Kind(body={"priority": _whole(-5, 5)}),
    "special tokens shown": Kind({"skip_special_tokens": False}, ignore_eos=False),
    "a seed, top-k": Kind(_seeded(top_k=_top_k), seeded=True),
    "a seed, top-p": Kind(_seeded(top_p=_top_p), prompt=long_text, shorter=8, seeded=True),
    "a seed, text that is copied": Kind(_seeded(top_k=_top_k, top_p=_top_p), prompt=repeated_text, seeded=True),
    "a seed and a penalty": Kind(_seeded(top_p=_top_p, frequency_penalty=_penalty), counts_tokens=True, seeded=True),
    "a seed and a grammar": Kind(_seeded(top_k=_top_k, ebnf=GRAMMAR), ignore_eos=False, seeded=True),
    "a seed and logprobs": Kind(_seeded(top_k=_top_k), {"return_logprob": True}, seeded=True),
}
