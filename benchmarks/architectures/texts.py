"""The prompts, and a server's greedy answers to them."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sglang_adaptive.client import Client

BATCHES = (1, 8, 32)
NEW_TOKENS = 48
SWITCH_SECONDS = 0.03
"""Time between two forced depths while requests run; a round takes 2 to 10 ms."""


def prompts(count: int, vocabulary: int) -> list[list[int]]:
    """Return *count* prompts of 12 to 150 token ids, the same ones in every run; one in four is long."""
    draw = random.Random(20)
    lengths = [draw.randrange(110, 150) if index % 4 == 1 else draw.randrange(12, 60) for index in range(count)]
    return [[draw.randrange(16, vocabulary) for _ in range(length)] for length in lengths]


@dataclass(frozen=True)
class Answers:
    """The output tokens of each request, and what its rounds accepted."""

    outputs: list[list[int]]
    rounds: int
    """Verify rounds, summed over the requests; 0 without speculation."""

    accepted: int
    """Drafts accepted, summed over the requests."""


def ask(server: Client, wanted: Sequence[Sequence[int]], new_tokens: int = NEW_TOKENS) -> Answers:
    """Send *wanted* as one batch and return the greedy answers. Raises RequestError or OSError."""
    answers = server.generate([list(prompt) for prompt in wanted], new_tokens, ignore_eos=True)
    answers = answers if isinstance(answers, list) else [answers]
    outputs = [list(answer["output_ids"]) for answer in answers]
    rounds = [int(answer["meta_info"].get("spec_verify_ct") or 0) for answer in answers]
    # The first token is the prefill's; every round adds one token of its own.
    accepted = [max(0, len(out) - 1 - done) if done else 0 for out, done in zip(outputs, rounds, strict=True)]
    return Answers(outputs, sum(rounds), sum(accepted))


def ask_while_switching(server: Client, wanted: Sequence[Sequence[int]], depths: Sequence[int]) -> Answers:
    """Like ``ask``, while another thread forces one of *depths* after the other, and releases them at the end."""
    done = threading.Event()

    def switch() -> None:
        order = random.Random(7)
        while not done.wait(SWITCH_SECONDS):
            server.force_steps(order.choice(list(depths)))

    switcher = threading.Thread(target=switch, daemon=True)
    switcher.start()
    try:
        return ask(server, wanted)
    finally:
        done.set()
        switcher.join(timeout=30)
        server.force_steps(None)


def score(reference: Client, prompt: Sequence[int], output: Sequence[int]) -> dict[str, Any]:
    """Return the reference's log-probabilities of every token of *prompt* and *output*, read as one prompt."""
    body = {
        "input_ids": [*prompt, *output],
        "sampling_params": {"temperature": 0, "max_new_tokens": 1, "ignore_eos": True},
        "return_logprob": True,
        "logprob_start_len": 0,
        "top_logprobs_num": 1,
    }
    answer: dict[str, Any] = reference.post("/generate", body)
    return answer


def takes(reference: Client, prompt: Sequence[int], output: Sequence[int], at: int) -> bool:
    """Return whether the reference itself takes token *at* of *output* after those before it, in a batch of some size.

    A mixture of experts may send a token to another expert in another batch: its gap is then as large as an error's.
    """
    read = [*prompt, *output[:at]]
    return any([output[at]] in ask(reference, [read] * batch, 1).outputs for batch in BATCHES)
