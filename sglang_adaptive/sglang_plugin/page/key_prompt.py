"""Sends a browser a form for the server's key.

A browser cannot send a key with a typed address. So where SGLang refuses ``GET /adaptive``, status 401, a browser gets
the page's document as the body of the refusal: the same bytes for every server, without data. The document asks for the
key, keeps it while the tab is open, and sends it with its requests for ``/adaptive.json``, which SGLang refuses without
it. A client that does not accept HTML gets SGLang's own answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

Scope = dict[str, Any]
Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class KeyPrompt:
    """ASGI middleware outside SGLang's key check; it changes only the body of one refusal."""

    def __init__(self, app: App, path: str, page: tuple[bytes, dict[str, str]]) -> None:
        self._app, self._path = app, path
        html, headers = page
        fields = {**headers, "content-length": str(len(html)), "www-authenticate": "Bearer"}
        self._start = {
            "type": "http.response.start",
            "status": 401,
            "headers": [(name.encode(), value.encode()) for name, value in fields.items()],
        }
        self._body = {"type": "http.response.body", "body": html}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on; a browser that is refused the page gets the form."""
        if scope["type"] != "http" or not self._is_browser_at_page(scope):
            return await self._app(scope, receive, send)
        refused = False

        async def dressed(message: Message) -> None:
            nonlocal refused
            if message["type"] == "http.response.start" and message["status"] == 401:
                refused = True
                await send(self._start)
                await send(self._body)
            elif not refused:
                await send(message)

        await self._app(scope, receive, dressed)

    def _is_browser_at_page(self, scope: Scope) -> bool:
        if scope["path"].removeprefix(scope.get("root_path", "")) != self._path or scope["method"] != "GET":
            return False
        return any(name == b"accept" and b"text/html" in value for name, value in scope["headers"])
