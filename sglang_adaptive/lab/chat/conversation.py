"""A conversation: the messages so far, the answer to the next one as it grows, and the steps of its rounds."""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sglang_adaptive.client import Client

MOST_DEPTHS = 3
"""How many numbers of steps are listed at most, those with the most rounds first."""


@dataclass(frozen=True, slots=True)
class Drafting:
    """Rounds of the whole server by steps, including those of concurrent requests."""

    rounds: Mapping[int, int]

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> Drafting:
        """Return the rounds so far of *state*, the ``adaptive`` block of /server_info."""
        return cls({int(steps): count for steps, count in state["rounds_by_tier"].items()})

    @property
    def total(self) -> int:
        """Rounds at all steps."""
        return sum(self.rounds.values())

    @property
    def mean_steps(self) -> float:
        """Mean steps of a round."""
        return sum(steps * count for steps, count in self.rounds.items()) / self.total

    def since(self, before: Drafting) -> Drafting:
        """Return the rounds since *before*."""
        new = {steps: count - before.rounds.get(steps, 0) for steps, count in self.rounds.items()}
        return Drafting({steps: count for steps, count in new.items() if count > 0})

    def __str__(self) -> str:
        most = sorted(self.rounds.items(), key=lambda entry: -entry[1])[:MOST_DEPTHS]
        return ", ".join(f"{steps}: {count / self.total:.0%}" for steps, count in most)


def drafting(client: Client) -> Drafting | None:
    """Return the rounds that the server has decoded so far; None when it does not adapt. Raises what Client does."""
    state: dict[str, Any] | None = client.server_info()["internal_states"][0].get("adaptive")
    return None if state is None or not state["active"] else Drafting.of(state)


@dataclass(frozen=True, slots=True)
class Measured:
    """Time and tokens of an answer."""

    tokens: int
    seconds: float
    """Seconds from the question to the last token."""

    drafting: Drafting | None
    cut: bool
    """Whether the answer stopped at the length limit."""

    def __str__(self) -> str:
        words = f"{self.tokens} tokens, {self.tokens / self.seconds:.1f} tokens/s"
        if self.drafting is not None and self.drafting.total:
            rounds = self.drafting
            words += (
                f", {self.tokens / rounds.total:.2f} tokens per round, {rounds.mean_steps:.1f} draft steps ({rounds})"
            )
        return words + ("; reached the limit, raise it with --tokens" if self.cut else "")


@dataclass
class Conversation:
    """Talks to *client*; `ask` adds a question and its answer to the messages."""

    client: Client
    system: str | None = None
    tokens: int = 256
    temperature: float = 0.0
    messages: list[dict[str, str]] = field(default_factory=list)
    measured: Measured | None = None
    """Time and tokens of the latest answer; None until it is complete."""

    def ask(self, question: str) -> Generator[str, None, None]:
        """Yield the answer's text, piece by piece.

        The question is removed if its answer fails or the iterator is closed early. Raises OSError,
        http.client.HTTPException or client.RequestError.
        """
        self.measured = None
        before = drafting(self.client)
        asked = [*self.messages, {"role": "user", "content": question}]
        whole = [*([{"role": "system", "content": self.system}] if self.system else []), *asked]
        begin = time.perf_counter()
        answer, tokens, reason = "", 0, None
        for chunk in self.client.chat(whole, self.tokens, temperature=self.temperature):
            text, reason = _delta(chunk, reason)
            tokens = (chunk.get("usage") or {}).get("completion_tokens", tokens)
            if text:
                answer += text
                yield text
        seconds = time.perf_counter() - begin
        after = drafting(self.client)
        self.messages = [*asked, {"role": "assistant", "content": answer}]
        rounds = after.since(before) if before is not None and after is not None else None
        self.measured = Measured(tokens, seconds, rounds, reason == "length")


def _delta(chunk: dict[str, Any], reason: str | None) -> tuple[str, str | None]:
    """Return the text of a chunk, and why the answer ended if it did."""
    for choice in chunk.get("choices", ()):
        return choice["delta"].get("content") or "", choice.get("finish_reason") or reason
    return "", reason
