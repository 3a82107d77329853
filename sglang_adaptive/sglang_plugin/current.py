"""The `Rounds` of a scheduler process. Hooks find it here, because SGLang's functions do not carry it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sglang_adaptive.sglang_plugin.rounds import Rounds

_rounds: Rounds | None = None


def current() -> Rounds | None:
    """Return the rounds of this process; None where speculation is static."""
    return _rounds


def set_current(made: Rounds | None) -> None:
    """Set the rounds of this process, or None. Tests replace them; a server does not."""
    global _rounds
    _rounds = made
