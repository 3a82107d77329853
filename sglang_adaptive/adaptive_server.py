"""The adaptive state of a live server, over HTTP; a command may hold its depth."""

from __future__ import annotations

import time
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any

from sglang_adaptive.client import Client, RequestError, in_words

HOLD_SECONDS = 15.0
"""The server releases a held depth this long after the last renewal, however the command ended."""


class NotReady(Exception):
    """The server cannot be measured; the message is one line."""


class AdaptiveServer:
    """A client of one adaptive server."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.info: dict[str, Any] = {}
        self.state = self.refresh()
        self._held_before: int | None = self.state["forced_without_end"]
        self._held: int | None = None
        self._renew_at = 0.0

    def refresh(self) -> dict[str, Any]:
        """Read and return the ``adaptive`` block of /server_info, of the first replica if there are several.

        Raises NotReady if the server does not answer or is not adaptive.
        """
        self.info = read_info(self.client)
        found = self.info["internal_states"][0].get("adaptive")
        if found is None:
            raise NotReady(f"{self.client.url} is not adaptive: start it with --speculative-adaptive-config throughput")
        if not found["active"]:
            raise NotReady(f"{self.client.url} is not adaptive: {found['reason']}")
        self.state = found
        return self.state

    def hold(self, steps: int) -> None:
        """Hold *steps*, for HOLD_SECONDS unless :meth:`renew` is called. Raises NotReady with the server's message."""
        self._force(steps, HOLD_SECONDS)
        self._held, self._renew_at = steps, time.monotonic() + HOLD_SECONDS / 3

    def renew(self) -> None:
        """Renew the current hold if a third of its time is over."""
        if self._held is not None and time.monotonic() >= self._renew_at:
            self.hold(self._held)

    def put_back(self) -> None:
        """Restore the hold that has no end, or release; another timed hold is not restored."""
        self._held = None
        self._force(self._held_before, None)

    def _force(self, steps: int | None, seconds: float | None) -> None:
        try:
            held = self.client.force_steps(steps, seconds)
        except (RequestError, OSError, HTTPException) as error:
            raise NotReady(f"{self.client.url}: {in_words(error)}") from None
        if not all(held):
            raise NotReady(f"{self.client.url}: its scheduler refused the depth; its log says why")


def most_running(info: Mapping[str, Any]) -> int | None:
    """Return how many requests a replica of the server of *info* runs at once; None if unknown."""
    found: int | None = info["internal_states"][0].get("effective_max_running_requests_per_dp")
    return found


def read_info(client: Client) -> dict[str, Any]:
    """Return /server_info. Raises NotReady if the server refuses, does not answer or is not SGLang's."""
    try:
        info = client.server_info()
    except (RequestError, OSError, HTTPException) as error:
        raise NotReady(f"{client.url}: {in_words(error)}") from None
    if not isinstance(info, dict) or not info.get("internal_states"):
        raise NotReady(f"{client.url}: it answers, but not like an SGLang server")
    return info
