"""An ASGI application and requests to it, without a server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

Application = Callable[[Any, Any, Any], Awaitable[None]]


def application(answer: Callable[[bytes], Awaitable[bytes]], status: int = 200) -> Application:
    """Return an application that answers each body with *status* and what *answer* makes of it."""

    async def called(scope: Any, receive: Any, send: Any) -> None:
        body = await answer((await receive()).get("body", b""))
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": body})

    return called


async def posted(to: Application, body: bytes, method: str = "POST") -> tuple[int, bytes]:
    """Return status and body of the answer to a request to /set_internal_state from 10.0.0.7:5."""
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {"type": "http", "method": method, "path": "/set_internal_state", "headers": [], "root_path": ""}
    await to({**scope, "client": ("10.0.0.7", 5)}, receive, send)
    return sent[0]["status"], sent[1]["body"]


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # the suite's time limit ends it
        await asyncio.sleep(0.002)
