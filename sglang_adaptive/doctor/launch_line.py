"""Splits a launch line into SGLang's arguments and the environment."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_STARTS = (["sglang.launch_server"], ["sglang", "serve"], ["sglang-adaptive", "serve-cpu"])
EXPECTED = "python -m sglang.launch_server ..., sglang serve ..., sglang-adaptive serve-cpu ..., or SGLang's arguments"


@dataclass(frozen=True, slots=True)
class LaunchLine:
    """The parts of a launch line."""

    arguments: list[str]
    """SGLang's arguments; for serve-cpu those that the user typed."""

    variables: dict[str, str]
    """Environment variables that were set in front of the command."""

    on_cpu: bool
    """Whether ``sglang-adaptive serve-cpu`` launches it."""


def take_apart(words: Sequence[str]) -> LaunchLine:
    """Return the parts of the launch line *words*. Raises ValueError with one line when they are no launch line."""
    rest = list(words)
    variables = {}
    while rest and (found := _ASSIGNMENT.fullmatch(rest[0])):
        variables[found[1]] = found[2]
        rest.pop(0)
    if rest and rest[0].startswith("-"):
        return LaunchLine(rest, variables, on_cpu=False)
    for at in range(len(rest)):
        for start in _STARTS:
            name = rest[at].rpartition("/")[2]  # as in .venv/bin/sglang
            if [name, *rest[at + 1 : at + len(start)]] == start:
                return LaunchLine(rest[at + len(start) :], variables, on_cpu=start[-1] == "serve-cpu")
    raise ValueError(f"no launch line in {' '.join(words)!r}; expected {EXPECTED}")
