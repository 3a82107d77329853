"""Load on a live server, and how fast it was served."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass

from sglang_adaptive.client import Client

PROMPT_TOKENS = 128
VOCABULARY = 200


@dataclass(frozen=True)
class Served:
    """One batch of requests: what came back and how long it took."""

    tokens: int
    seconds: float
    rounds: int
    """Verify rounds of the requests, added up."""

    @property
    def tokens_per_second(self) -> float:
        """Output tokens a second of the whole batch, prefill and drain included."""
        return self.tokens / self.seconds

    @property
    def accept_length(self) -> float | None:
        """Tokens a request and round, bonus token included; None without speculation."""
        return self.tokens / self.rounds if self.rounds else None


def serve(client: Client, requests: int, tokens: int, seed: int = 0) -> Served:
    """Send *requests* prompts of PROMPT_TOKENS random tokens at once; each generates *tokens* tokens."""
    draw = random.Random(seed)
    prompts = [[draw.randrange(VOCABULARY) for _ in range(PROMPT_TOKENS)] for _ in range(requests)]
    begin = time.perf_counter()
    answers = client.generate(prompts, tokens, ignore_eos=True)
    seconds = time.perf_counter() - begin
    rounds = sum(answer["meta_info"].get("spec_verify_ct") or 0 for answer in answers)
    return Served(sum(answer["meta_info"]["completion_tokens"] for answer in answers), seconds, rounds)
