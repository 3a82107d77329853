"""POST /set_internal_state in the launcher: accepts null and objects as values, and answers why a value is refused.

SGLang's own route accepts only numbers, and answers ``[false]`` where its scheduler refuses one. This ASGI layer checks
requests with a key of this package, answers 400 with one line when the value is invalid, and passes all others on
unchanged. It runs inside SGLang's API-key check, which is added later and so wraps it. That check depends on the route
that a request matches, so this layer handles only the methods of SGLang's route.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import orjson

from sglang_adaptive.policy.config.captured_steps import CapturedSteps
from sglang_adaptive.policy.config.config_file import MAX_BYTES, parse_object
from sglang_adaptive.policy.errors import ConfigError, shown
from sglang_adaptive.sglang_plugin.admin.config_changes import ConfigChanges
from sglang_adaptive.sglang_plugin.admin.reconfigure import CONFIG_KEY, PACKED, Change
from sglang_adaptive.sglang_plugin.admin.server_info import FORCE_KEY, RELEASE
from sglang_adaptive.sglang_plugin.launch.activation import NOTE
from sglang_adaptive.sglang_plugin.launch.handshake import BUILT

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
PATH = "/set_internal_state"
METHODS = ("POST", "PUT")

logger = logging.getLogger(__name__)


def install(
    server_args: Any,
    tokenizer_manager: Any,
    template_manager: Any,
    port_args: Any,
    scheduler_infos: list[dict[str, Any]],
    *args: Any,
    **kwargs: Any,
) -> None:
    """Before SGLang sets up its HTTP server: add the ASGI layer to its application."""
    from sglang.srt.arg_groups.overrides import resolving_view
    from sglang.srt.entrypoints.http_server import app

    cfg, note = resolving_view(server_args), getattr(server_args, NOTE)
    built = CapturedSteps.from_pairs(scheduler_infos[0].get(BUILT, []))
    changes = None
    if cfg.speculative_adaptive:
        path = cfg.speculative_adaptive_config
        changes = ConfigChanges(partial(_to_schedulers, tokenizer_manager), built, path, note["config"], note["stamp"])
        if (cfg.tokenizer_worker_num or 1) > 1:
            # Those workers load no plugins, and uvicorn's supervisor handles SIGHUP itself.
            logger.warning("adaptive: with several tokenizer workers the configuration cannot change while serving")
    app.add_middleware(AdminRoute, tiers=sorted(built.graphs), inactive=note["reason"], changes=changes)


async def _to_schedulers(tokenizer_manager: Any, change: Change) -> list[bool]:
    from sglang.srt.managers.io_struct import SetInternalStateReq

    updated: list[bool] = await tokenizer_manager.set_internal_state(SetInternalStateReq(server_args=change.pack()))
    return updated


class AdminRoute:
    """ASGI middleware around SGLang's application."""

    def __init__(
        self,
        app: Callable[[Scope, Receive, Send], Awaitable[None]],
        tiers: list[int],
        inactive: str | None,
        changes: ConfigChanges | None = None,
    ):
        self._app, self._tiers, self._inactive, self._changes = app, tiers, inactive, changes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check a request for PATH; pass all others to SGLang unchanged."""
        if scope["type"] == "lifespan" and self._changes is not None:
            self._changes.start()  # the event loop is running, and no request has arrived yet
        if not _is_ours(scope):
            return await self._app(scope, receive, send)
        body = await _read(receive)
        if any(name == CONFIG_KEY or name.startswith(PACKED) for name in _names(body)):
            return await self._configure(scope, body, send)
        problem, replaced = self._checked(body)
        if problem is not None:
            return await _refuse(send, problem)
        await self._app(_with_length(scope, replaced), _once(replaced, receive), send)

    async def _configure(self, scope: Scope, body: bytes, send: Send) -> None:
        """Answer a request with a configuration: 200 and a true for each data-parallel replica, or 400 and one line."""
        client = scope.get("client")
        by = f"{client[0]}:{client[1]}" if client else "a client without an address"
        try:
            if self._changes is None:
                return await _refuse(send, f"{CONFIG_KEY}: adaptive speculation is off: {self._inactive}")
            await _answer(send, 200, await self._changes.request(_configuration(body), by))
        except ConfigError as error:
            logger.warning("adaptive: configuration from %s refused: %s", by, error)
            await _refuse(send, str(error))

    def _checked(self, body: bytes) -> tuple[str | None, bytes]:
        """Return the problem with this package's key, or None, and the body to pass to SGLang."""
        try:
            message = orjson.loads(body)
            values = message["server_args"]
            steps = values[FORCE_KEY]
        except (ValueError, KeyError, TypeError):
            return None, body  # no key of this package, or malformed: SGLang answers
        if self._inactive is not None:
            return f"{FORCE_KEY}: adaptive speculation is off: {self._inactive}", body
        if steps is None:
            values[FORCE_KEY] = RELEASE
        elif isinstance(steps, bool) or not isinstance(steps, int) or steps not in self._tiers:
            built = ", ".join(map(str, self._tiers))
            return f"{FORCE_KEY}: got {shown(steps)}; expected one of {built}, or null to release", body
        return None, orjson.dumps(message)


def _is_ours(scope: Scope) -> bool:
    if scope["type"] != "http" or scope["method"] not in METHODS:
        return False
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", "")) == PATH


def _names(body: bytes) -> list[str]:
    """Return the keys that a request sets; none when it is malformed, which SGLang reports."""
    try:
        return list(orjson.loads(body)["server_args"].keys())
    except (ValueError, KeyError, TypeError, AttributeError):
        return []


def _configuration(body: bytes) -> Any:
    """Return the value of CONFIG_KEY in a request. Raises ConfigError when the request has other keys."""
    if len(body) > MAX_BYTES:
        raise ConfigError(CONFIG_KEY, None, f"the request is larger than {MAX_BYTES} bytes", "a configuration object")
    values = parse_object(CONFIG_KEY, body.decode())["server_args"]  # as a file is parsed: no key twice
    others = [name for name in values if name != CONFIG_KEY]
    if others:
        raise ConfigError(CONFIG_KEY, None, f"comes together with {shown(others)}", "it in a request of its own")
    return values[CONFIG_KEY]


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
    """Return a receive that yields *body* and then the later messages of the connection."""
    pending = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> dict[str, Any]:
        return pending.pop() if pending else await receive()

    return replay


def _with_length(scope: Scope, body: bytes) -> Scope:
    headers = [(name, value) for name, value in scope["headers"] if name != b"content-length"]
    return {**scope, "headers": [*headers, (b"content-length", str(len(body)).encode())]}


async def _refuse(send: Send, line: str) -> None:
    await _answer(send, 400, {"error": {"message": line}})


async def _answer(send: Send, status: int, content: Any) -> None:
    body = orjson.dumps(content)
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
