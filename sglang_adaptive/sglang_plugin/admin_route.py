"""The launcher's side of POST /set_internal_state: null as a value, and a reason for a refusal.

SGLang's own route answers ``[false]`` to whatever its scheduler refuses, and accepts no null. This ASGI layer looks
at requests that name a key of ours, answers 400 with one line when the value cannot be used, and passes everything
else on untouched. It runs inside SGLang's API-key check, which is added later and so wraps it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import orjson

from sglang_adaptive.sglang_plugin.activation import NOTE
from sglang_adaptive.sglang_plugin.policies import resolve_candidate_steps
from sglang_adaptive.sglang_plugin.server_info import FORCE_KEY, RELEASE

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
PATH = "/set_internal_state"


def install(server_args: Any, *args: Any, **kwargs: Any) -> None:
    """Before SGLang sets up its HTTP server: put the layer into its application."""
    from sglang.srt.arg_groups.overrides import resolving_view
    from sglang.srt.entrypoints.http_server import app

    cfg = resolving_view(server_args)
    steps = resolve_candidate_steps(cfg.speculative_adaptive_config) if cfg.speculative_adaptive else []
    app.add_middleware(AdminRoute, tiers=steps, inactive=getattr(server_args, NOTE)["reason"])


class AdminRoute:
    """ASGI middleware around SGLang's application."""

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]], tiers: list[int], inactive: str | None):
        self._app, self._tiers, self._inactive = app, tiers, inactive

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check a request for PATH; hand everything else to SGLang as it came."""
        if scope["type"] != "http" or scope["path"] != PATH:
            return await self._app(scope, receive, send)
        body = await _read(receive)
        problem, replaced = self._checked(body)
        if problem is not None:
            return await _answer(send, 400, {"error": {"message": problem}})
        await self._app(_with_length(scope, replaced), _once(replaced, receive), send)

    def _checked(self, body: bytes) -> tuple[str | None, bytes]:
        """Return what is wrong with our key, if anything, and the body that SGLang shall see."""
        try:
            message = orjson.loads(body)
            values = message["server_args"]
            steps = values[FORCE_KEY]
        except (ValueError, KeyError, TypeError):
            return None, body  # not ours, or malformed: SGLang answers
        if self._inactive is not None:
            return f"{FORCE_KEY}: adaptive speculation is off: {self._inactive}", body
        if steps is None:
            values[FORCE_KEY] = RELEASE
        elif isinstance(steps, bool) or not isinstance(steps, int) or steps not in self._tiers:
            built = ", ".join(map(str, self._tiers))
            return f"{FORCE_KEY}: got {orjson.dumps(steps).decode()}; expected one of {built}, or null to release", body
        return None, orjson.dumps(message)


async def _read(receive: Receive) -> bytes:
    chunks, more = [], True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            break
        chunks.append(message.get("body", b""))
        more = message.get("more_body", False)
    return b"".join(chunks)


def _once(body: bytes, receive: Receive) -> Receive:
    """Return a receive that gives *body* and then whatever follows on the connection."""
    pending = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> dict[str, Any]:
        return pending.pop() if pending else await receive()

    return replay


def _with_length(scope: Scope, body: bytes) -> Scope:
    headers = [(name, value) for name, value in scope["headers"] if name != b"content-length"]
    return {**scope, "headers": [*headers, (b"content-length", str(len(body)).encode())]}


async def _answer(send: Send, status: int, content: dict[str, Any]) -> None:
    body = orjson.dumps(content)
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
