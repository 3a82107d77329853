"""Flags of published launch lines that SGLang 0.5.23 refuses, and their replacements."""

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
"""Flags that take the same values under another name.

``--cuda-graph-max-bs`` and ``--cuda-graph-bs`` now abbreviate a decode and a prefill flag each, and SGLang refuses them
as ambiguous; both meant decode.
"""

REPLACED = {"--enable-deepep-moe": ("--moe-a2a-backend", "deepep")}
"""Switches that became a value of another flag."""

DROPPED = {"--prefill-round-robin-balance": "decode servers ask the prefill server for its rank since"}
"""Switches that SGLang no longer has, and why."""


@dataclass(frozen=True, slots=True)
class Change:
    """A flag of a launch line and its replacement."""

    flag: str
    """The flag in the line."""

    write: str | None
    """The replacement, without the flag's own values; None to leave the flag out."""

    why: str
    """What happened to the flag, as a phrase."""

    def as_dict(self) -> dict[str, str | None]:
        """Return JSON builtins."""
        return {"flag": self.flag, "write": self.write, "why": self.why}


def mend(arguments: Sequence[str]) -> tuple[list[str], list[Change]]:
    """Return *arguments* as SGLang 0.5.23 accepts them, and the changes, in the order of the line."""
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
