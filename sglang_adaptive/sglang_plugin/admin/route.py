"""POST /set_internal_state in the launcher: accepts null and objects as values, and answers why a value is refused.

SGLang's own route accepts only numbers, and answers ``[false]`` where its scheduler refuses one. This ASGI layer checks
requests with a key of this package, answers 400 with one line when the key is not one of KEYS or the value is invalid,
and passes all others on unchanged. Other keys of this package reach the schedulers only from this process. The layer
runs inside SGLang's API-key check, which is added later and so wraps it. That check depends on the route that a request
matches, so the layer handles only the methods of SGLang's route.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import signal
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import orjson
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sglang_adaptive.policy.choice import CapturedSteps
from sglang_adaptive.policy.config import MAX_BYTES, parse_object
from sglang_adaptive.policy.errors import ConfigError, printable, shown
from sglang_adaptive.policy.options import nearest
from sglang_adaptive.sglang_plugin import env
from sglang_adaptive.sglang_plugin.admin.audit_http import DecodesAgain
from sglang_adaptive.sglang_plugin.admin.config_changes import ConfigChanges, in_background
from sglang_adaptive.sglang_plugin.admin.handlers import (
    CONFIG_KEY,
    EXTEND_KEY,
    FORCE_KEY,
    LEASE_OVER_KEY,
    Hold,
    extend_problem,
    pack,
)
from sglang_adaptive.sglang_plugin.admin.server_info import look, manager
from sglang_adaptive.sglang_plugin.contract import import_in_workers
from sglang_adaptive.sglang_plugin.hooks import BUILT
from sglang_adaptive.sglang_plugin.notes import NOTE
from sglang_adaptive.sglang_plugin.stages.audit_scheduler import REPORT_KEY, TAKE
from sglang_adaptive.sglang_plugin.start.controller import fitted

PATH = "/set_internal_state"
METHODS = ("POST", "PUT")
WORKERS_APPLICATION = "sglang_adaptive.sglang_plugin.admin.http_worker:app"
SECONDS_KEY = "adaptive_force_seconds"
KEYS = (CONFIG_KEY, FORCE_KEY, SECONDS_KEY, EXTEND_KEY)
"""The keys that a client may send."""
OURS = "adaptive_"
"""How every key of this package begins."""
MOST_SECONDS = 86400
"""The longest timed hold; for more, use a hold without an end."""
logger = logging.getLogger(__name__)


def install(server_args: Any, scheduler_infos: list[dict[str, Any]]) -> None:
    """Add the ASGI layer to the application of SGLang's HTTP server, or let several HTTP workers add it."""
    from sglang.srt.arg_groups.overrides import resolving_view

    if (resolving_view(server_args).tokenizer_worker_num or 1) > 1:
        _serve_our_application()
    else:
        add_layer(server_args, scheduler_infos[0])


def add_layer(server_args: Any, scheduler_info: Mapping[str, Any]) -> None:
    """Add the layer to SGLang's application in this process."""
    from sglang.srt.arg_groups.overrides import resolving_view
    from sglang.srt.entrypoints.http_server import app

    cfg, note = resolving_view(server_args), getattr(server_args, NOTE)
    built = CapturedSteps.from_pairs(scheduler_info.get(BUILT, []))
    changes = None
    if cfg.speculative_adaptive:
        most = max(built.graphs, default=0)
        again = DecodesAgain(
            manager, take=lambda: look(TAKE), send=lambda report: to_schedulers(pack(REPORT_KEY, report))
        )
        changes = ConfigChanges(
            send=lambda change: to_schedulers(pack(CONFIG_KEY, change)),
            in_force=_in_force,
            built=built,
            path=note["reading"].path,
            stamp=note["reading"].stamp,
            changed=again.begin,
            fit=lambda config: fitted(config, most, cfg),
        )
    app.add_middleware(AdminRoute, tiers=sorted(built.graphs), inactive=note["reason"], changes=changes)


def _serve_our_application() -> None:
    """Make HTTP workers import this package's application and log its messages, and pass SIGHUP to one of them.

    Each worker of ``--tokenizer-worker-num`` is a new process in which SGLang loads no plugins.
    """
    from uvicorn.config import LOGGING_CONFIG

    named = import_in_workers(WORKERS_APPLICATION)
    if named != WORKERS_APPLICATION:
        os.environ[env.HTTP_APPLICATION] = named
    # As SGLang does for its own logger; a worker configures no other.
    LOGGING_CONFIG["loggers"]["sglang_adaptive"] = {"handlers": ["default"], "level": "INFO", "propagate": False}
    try:
        from uvicorn.supervisors import multiprocess

        supervisor: Any = multiprocess.Multiprocess
        assert callable(supervisor.handle_hup), "what uvicorn calls on SIGHUP"
        supervisor.handle_hup = _pass_on
    except Exception:
        logger.exception("adaptive: SIGHUP restarts the HTTP workers, as without this package")


def _pass_on(supervisor: Any) -> None:
    """Let one worker reread the configuration; uvicorn would restart all workers, which ends their requests."""
    for process in supervisor.processes:
        with contextlib.suppress(OSError):  # it has just ended, and will be replaced
            return os.kill(process.pid, signal.SIGHUP)


async def _in_force() -> dict[str, Any]:
    """Return the configuration of the first scheduler that answers."""
    found: dict[str, Any] = (await look())[0].get("config") or {}
    return found


async def to_schedulers(values: dict[str, int]) -> list[bool]:
    """Send SGLang's message with *values*; return for each data-parallel replica whether it accepted them."""
    from sglang.srt.managers.io_struct import SetInternalStateReq

    updated: list[bool] = await manager().set_internal_state(SetInternalStateReq(server_args=values))
    return updated


async def zero_steps() -> list[Any]:
    """Return ``zero_steps`` of /server_info for each data-parallel replica; None where no extend is deferred."""
    return [state.get("zero_steps") for state in await look()]


class AdminRoute:
    """ASGI middleware around SGLang's application."""

    def __init__(
        self,
        app: ASGIApp,
        tiers: list[int],
        inactive: str | None,
        changes: ConfigChanges | None = None,
        to_schedulers: Callable[[dict[str, int]], Awaitable[list[bool]]] = to_schedulers,
        zero_steps: Callable[[], Awaitable[list[Any]]] = zero_steps,
    ):
        self._app, self._tiers, self._inactive, self._changes = app, tiers, inactive, changes
        self._send, self._zero_steps = to_schedulers, zero_steps

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check a request for PATH; pass all others to SGLang unchanged."""
        if scope["type"] == "lifespan" and self._changes is not None:
            return await self._app(scope, receive, _once_started(send, self._changes.start))
        if not _is_ours(scope):
            return await self._app(scope, receive, send)
        try:
            body = await Request(scope, receive).body()
        except ClientDisconnect:
            return None
        names = _names(body)
        if any(name.partition(" ")[0] == CONFIG_KEY for name in names):
            answer = await self._configure(scope, body)
            return await answer(scope, receive, send)
        if any(name.startswith(OURS) for name in names):
            return await self._pass_on(scope, body, receive, send)
        await self._app(scope, _once(body, receive), send)

    async def _configure(self, scope: Scope, body: bytes) -> Response:
        """Answer a request with a configuration: 200 and a true for each data-parallel replica, or 400 and one line."""
        client = scope.get("client")
        by = f"{client[0]}:{client[1]}" if client else "a client without an address"
        if self._changes is None:
            return _refuse(f"{CONFIG_KEY}: adaptive speculation is off: {self._inactive}")
        try:
            return _answer(200, await self._changes.request(_configuration(body), by))
        except ConfigError as error:
            logger.warning("adaptive: configuration from %s refused: %s", by, error)
            return _refuse(str(error))

    async def _pass_on(self, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
        """Forward a request with keys of this package, steps to hold as a `Hold`, or answer 400 and one line."""
        message = orjson.loads(body)
        values = message["server_args"]
        problem = self._problem(values)
        if problem is None and EXTEND_KEY in values:
            found = [extend_problem(values[EXTEND_KEY], state) for state in await self._zero_steps()]
            problem = next(filter(None, found), None)
        if problem is not None:
            return await _refuse(problem)(scope, receive, send)
        seconds = values.pop(SECONDS_KEY, None)
        lease = None if seconds is None else secrets.randbelow(2**31)
        if FORCE_KEY in values:
            values |= pack(FORCE_KEY, Hold(values.pop(FORCE_KEY), lease))
        replaced = orjson.dumps(message)
        headers = [(name, value) for name, value in scope["headers"] if name != b"content-length"]
        scope = {**scope, "headers": [*headers, (b"content-length", str(len(replaced)).encode())]}
        try:
            await self._app(scope, _once(replaced, receive), send)
        finally:  # the schedulers may have it even if the answer failed
            if lease is not None:
                in_background(self._end(lease, seconds))

    def _problem(self, values: dict[str, Any]) -> str | None:
        """Return what is wrong with the keys of this package, as far as it is known without the schedulers."""
        steps, ours = values.get(FORCE_KEY), [name for name in values if name.startswith(OURS)]
        for name in ours:
            if name not in KEYS:
                return f"{printable(name)}: unknown key; expected one of {', '.join(KEYS)}{nearest(name, KEYS)}"
        if self._inactive is not None:
            return f"{ours[0]}: adaptive speculation is off: {self._inactive}"
        if steps is not None and (isinstance(steps, bool) or not isinstance(steps, int) or steps not in self._tiers):
            built = ", ".join(map(str, self._tiers))
            return f"{FORCE_KEY}: got {shown(steps)}; expected one of {built}, or null to release"
        if SECONDS_KEY not in values:
            return None
        seconds = values[SECONDS_KEY]
        if steps is None:
            return f"{SECONDS_KEY}: got {shown(seconds)}; expected steps to hold in {FORCE_KEY} beside it"
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= MOST_SECONDS:
            return f"{SECONDS_KEY}: got {shown(seconds)}; expected a number above 0 up to {MOST_SECONDS}"
        return None

    async def _end(self, lease: int, seconds: float) -> None:
        """End a hold after *seconds*. The schedulers ignore it if the hold was renewed through any HTTP worker."""
        await asyncio.sleep(seconds)
        try:
            await self._send({LEASE_OVER_KEY: lease})
        except Exception:
            logger.exception("adaptive: a hold of draft steps may not have ended")


def _once_started(send: Send, act: Callable[[], None]) -> Send:
    """Return a *send* that calls *act* once the application has started."""

    async def both(message: Message) -> None:
        await send(message)
        if message["type"] == "lifespan.startup.complete":
            act()

    return both


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
    values = parse_object(CONFIG_KEY, body.decode())["server_args"]  # parsed like a file: no duplicate keys
    others = [name for name in values if name != CONFIG_KEY]
    if others:
        raise ConfigError(CONFIG_KEY, None, f"comes together with {shown(others)}", "it in a request of its own")
    return values[CONFIG_KEY]


def _once(body: bytes, receive: Receive) -> Receive:
    """Return a receive that yields *body* and then the later messages of the connection."""
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return pending.pop() if pending else await receive()

    return replay


def _refuse(line: str) -> Response:
    return _answer(400, {"error": {"message": line}})


def _answer(status: int, content: Any) -> Response:
    return Response(orjson.dumps(content), status, media_type="application/json")
