"""Flags of published launch lines that SGLang 0.5.23 refuses, and their replacements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Change:
    """A flag of a launch line and its replacement."""

    flag: str
    """The flag in the line."""

    write: str | None
    """The replacement, without the flag's own values; None to leave the flag out."""

    why: str
    """What happened to the flag, as a phrase."""


# --cuda-graph-max-bs and --cuda-graph-bs now abbreviate a decode and a prefill flag each, and SGLang refuses them as
# ambiguous; both meant decode.
CHANGES = (
    Change("--cuda-graph-max-bs", "--cuda-graph-max-bs-decode", "renamed"),
    Change("--cuda-graph-bs", "--cuda-graph-bs-decode", "renamed"),
    Change("--mamba-scheduler-strategy", "--mamba-radix-cache-strategy", "renamed"),
    Change("--nsa-prefill-backend", "--dsa-prefill-backend", "renamed"),
    Change("--nsa-decode-backend", "--dsa-decode-backend", "renamed"),
    Change("--disable-piecewise-cuda-graph", "--disable-prefill-cuda-graph", "renamed"),
    Change("--enable-deepep-moe", "--moe-a2a-backend deepep", "replaced"),
    Change("--prefill-round-robin-balance", None, "decode servers ask the prefill server for its rank since"),
)


def mend(arguments: Sequence[str]) -> tuple[list[str], list[Change]]:
    """Return *arguments* as SGLang 0.5.23 accepts them, and the changes, in the order of the line."""
    known = {change.flag: change for change in CHANGES}
    mended: list[str] = []
    changes: list[Change] = []
    for argument in arguments:
        flag, equals, value = argument.partition("=")
        change = known.get(flag)
        if change is None:
            mended.append(argument)
            continue
        changes.append(change)
        words = [] if change.write is None else change.write.split()
        mended.extend([*words[:-1], f"{words[-1]}{equals}{value}"] if words else [])
    return mended, changes
