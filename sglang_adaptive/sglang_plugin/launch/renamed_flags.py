"""Flags that published launch lines carry and SGLang 0.5.23 no longer takes, and what to write today."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

RENAMED = {
    "--cuda-graph-max-bs": "--cuda-graph-max-bs-decode",
    "--cuda-graph-bs": "--cuda-graph-bs-decode",
    "--mamba-scheduler-strategy": "--mamba-radix-cache-strategy",
    "--nsa-prefill-backend": "--dsa-prefill-backend",
    "--nsa-decode-backend": "--dsa-decode-backend",
    "--disable-piecewise-cuda-graph": "--disable-prefill-cuda-graph",
}
"""A flag that takes the same values under another name.

SGLang reads ``--cuda-graph-max-bs`` and ``--cuda-graph-bs`` as abbreviations, of a decode and a prefill flag each, and
refuses them as ambiguous; both meant decode.
"""

REPLACED = {"--enable-deepep-moe": ("--moe-a2a-backend", "deepep")}
"""A switch that became a value of another flag."""

DROPPED = {"--prefill-round-robin-balance": "decode servers ask the prefill server for its rank since"}
"""A switch that SGLang no longer needs, and why."""


@dataclass(frozen=True, slots=True)
class Change:
    """One flag of a launch line to write differently."""

    flag: str
    """The flag as the line has it."""

    write: str | None
    """What stands there today, without the values that stay; None to leave the flag out."""

    why: str
    """A phrase: what happened to the flag."""

    def as_dict(self) -> dict[str, str | None]:
        """Return JSON builtins."""
        return {"flag": self.flag, "write": self.write, "why": self.why}


def mend(arguments: Sequence[str]) -> tuple[list[str], list[Change]]:
    """Return *arguments* as SGLang 0.5.23 takes them, and each change made, in the order of the line."""
    mended: list[str] = []
    changes: list[Change] = []
    for argument in arguments:
        flag, equals, value = argument.partition("=")
        change = _change(flag)
        if change is None:
            mended.append(argument)
            continue
        changes.append(change)
        words = [] if change.write is None else change.write.split()
        mended.extend([*words[:-1], f"{words[-1]}{equals}{value}"] if words else [])
    return mended, changes


def _change(flag: str) -> Change | None:
    if flag in RENAMED:
        return Change(flag, RENAMED[flag], "renamed")
    if flag in REPLACED:
        return Change(flag, " ".join(REPLACED[flag]), "replaced")
    if flag in DROPPED:
        return Change(flag, None, DROPPED[flag])
    return None
