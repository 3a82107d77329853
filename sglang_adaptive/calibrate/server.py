"""The adaptive part of a live server, over HTTP."""

from __future__ import annotations

from http.client import HTTPException
from typing import Any

from sglang_adaptive.client import Client, RequestError


class NotReady(Exception):
    """The server cannot be measured; the message is one line."""


class AdaptiveServer:
    """A client of one adaptive server."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.info = self._server_info()
        self.state = self.refresh()

    def refresh(self) -> dict[str, Any]:
        """Read and return the ``adaptive`` block of /server_info; of the first replica where there are several.

        Raises NotReady when the server does not answer or is not adaptive.
        """
        self.info = self._server_info()
        found = self.info["internal_states"][0].get("adaptive")
        if found is None:
            raise NotReady(f"{self.client.url} is not adaptive: start it with --speculative-adaptive-config FILE")
        if not found["active"]:
            raise NotReady(f"{self.client.url} is not adaptive: {found['reason']}")
        self.state = found
        return self.state

    def force(self, steps: int | None) -> None:
        """Hold *steps*, or release them with None. Raises NotReady with the server's message."""
        try:
            self.client.force_steps(steps)
        except RequestError as error:
            raise NotReady(str(error)) from None

    def _server_info(self) -> dict[str, Any]:
        try:
            info = self.client.server_info()
        except RequestError as error:
            raise NotReady(f"{self.client.url}: {error}") from None
        except (OSError, HTTPException) as error:
            raise NotReady(f"{self.client.url} does not answer: {error}") from None
        if not isinstance(info, dict) or not info.get("internal_states"):
            raise NotReady(f"{self.client.url} answers, but not as an SGLang server does")
        return info
