"""Compares the tokens of two runs: speculation may change the speed, never the text."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest

from sglang_adaptive.lab.demo.results import Run

_SHOWN_OF_PROMPT = 40


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The first token in which a request's output differs from the one without speculation."""

    contender: str
    phase: str
    prompt: str
    position: int
    """Counted in generated tokens from 0."""

    expected: int | None
    """Token id without speculation; None when that output ends here."""

    got: int | None

    def __str__(self) -> str:
        prompt = self.prompt if len(self.prompt) <= _SHOWN_OF_PROMPT else self.prompt[:_SHOWN_OF_PROMPT] + "..."
        return (
            f"{self.contender}, phase {self.phase}, prompt {prompt!r}: token {self.position} is "
            f"{_shown(self.got)}, without speculation {_shown(self.expected)}"
        )


def mismatches(baseline: Run, run: Run) -> list[Mismatch]:
    """Return one entry for each request whose tokens in *run* are not those in *baseline*."""
    found: list[Mismatch] = []
    for plain, other in zip(baseline.phases, run.phases, strict=True):
        for prompt, expected, got in zip(plain.phase.prompts, plain.outputs, other.outputs, strict=True):
            if expected != got:
                found.append(_first_difference(run.contender.title, plain.phase.name, prompt, expected, got))
    return found


def _first_difference(
    contender: str, phase: str, prompt: str, expected: tuple[int, ...], got: tuple[int, ...]
) -> Mismatch:
    pairs = enumerate(zip_longest(expected, got))
    position, (wanted, found) = next(entry for entry in pairs if entry[1][0] != entry[1][1])
    return Mismatch(contender, phase, prompt, position, wanted, found)


def _shown(token: int | None) -> str:
    return "missing" if token is None else str(token)
