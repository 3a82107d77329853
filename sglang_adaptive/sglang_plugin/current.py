"""The one `Round` of a scheduler process. Hooks find it here, because SGLang's functions do not carry it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sglang_adaptive.sglang_plugin.round import Round

_round: Round | None = None


def current() -> Round | None:
    """Return the round of this process; None where speculation is static."""
    return _round


def use(made: Round | None) -> None:
    """Set the round of this process, or None. Tests replace one round with another; a server does not."""
    global _round
    _round = made
