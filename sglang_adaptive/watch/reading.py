"""One reading of a server: its internal state, or why there is none."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any

from sglang_adaptive.client import Client, RequestError, in_words


@dataclass(frozen=True, slots=True)
class Reading:
    """A server's answer and its time."""

    at: float
    """Seconds on a monotonic clock."""

    time: float
    """Unix time in seconds."""

    internal: dict[str, Any] | None = None
    """SGLang's internal state of one replica; None when the server did not give it."""

    problem: str | None = None
    """Why ``internal`` is None."""

    @property
    def adaptive(self) -> dict[str, Any] | None:
        """The block of this package, when speculation is adaptive."""
        block = (self.internal or {}).get("adaptive")
        return block if block and block["active"] else None

    @property
    def inactive_reason(self) -> str | None:
        """Why a server that should adapt does not; None for other servers."""
        block = (self.internal or {}).get("adaptive")
        return None if block is None else block["reason"] or "its log says why"


def read(client: Client, replica: int, clock: Callable[[], float] = time.monotonic) -> Reading:
    """Ask the server once. Raises IndexError when it has no such data-parallel *replica*."""
    try:
        states = client.server_info()["internal_states"]
    except (RequestError, OSError, HTTPException) as error:
        return Reading(clock(), time.time(), problem=in_words(error))
    except (KeyError, TypeError):
        return Reading(clock(), time.time(), problem="it answers, but not as an SGLang server does")
    if replica >= len(states):
        raise IndexError(f"got {replica}; the server has {len(states)}, counted from 0")
    return Reading(clock(), time.time(), states[replica])
