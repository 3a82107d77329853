"""The outputs without speculation, which all outputs of the stepped scheduler must match."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sglang_adaptive.lab.cpu_engine import models
from tests.engine.stepping import Stepper

MOST_TOKENS = 60
"""Tokens of the longest answer."""

Prompt = tuple[int, ...]


class Broken(AssertionError):
    """A check failed; the message says which."""


class References:
    """Outputs without speculation: each prompt alone, at zero steps, with a draft extend every round."""

    def __init__(self, lab: Stepper) -> None:
        self._lab = lab
        self._known: dict[Prompt, list[int]] = {}

    def of(self, prompt: Prompt, count: int = MOST_TOKENS) -> list[int]:
        """Return at least *count* tokens that follow *prompt*; call it only between two runs unless they are known."""
        if len(self._known.get(prompt, ())) < count:

            def alone(lab: Stepper) -> Iterator[None]:
                lab.force(0)
                lab.ask("r", list(prompt), count)
                while not lab.done():
                    yield

            self._known[prompt] = self._lab.run(alone, every=1, overlap=False)["outputs"]["r"]
        return self._known[prompt]

    def known(self, prompt: Prompt) -> list[int] | None:
        """Return the known tokens that follow *prompt*, or None."""
        return self._known.get(prompt)


def require_same(rid: str, output: Sequence[int], wanted: Sequence[int]) -> None:
    """Raise Broken unless *wanted* starts with *output*."""
    if list(output) != list(wanted[: len(output)]):
        at = next(i for i, pair in enumerate(zip(output, wanted, strict=False)) if pair[0] != pair[1])
        raise Broken(f"{rid}: token {at} is {output[at]}, without speculation {wanted[at]}")


def prompts(lab: Stepper) -> list[Prompt]:
    """Return prompts of 1 to 150 tokens, three with a common prefix; a prefill takes 64 at once."""
    easy, hard = models.prompts("easy"), models.prompts("hard")
    found = [tuple(lab.encode(" ".join([text] * 20))) for text in (*easy[:4], *hard[:4])]
    lengths = (24, 1, 2, 70, 64, 65, 17, 150)
    return [*(tokens[:length] for tokens, length in zip(found, lengths, strict=True)), found[0][:40], found[0][:130]]
