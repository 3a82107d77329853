"""Adds the page's routes to SGLang's application, under SGLang's rules for keys."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from sglang_adaptive import __version__
from sglang_adaptive.sglang_plugin.admin.server_info import look
from sglang_adaptive.sglang_plugin.page import access_log, history_route, payload
from sglang_adaptive.sglang_plugin.page.answers import answer, sent
from sglang_adaptive.sglang_plugin.page.document import content_security_policy, document
from sglang_adaptive.sglang_plugin.page.key_prompt import KeyPrompt
from sglang_adaptive.sglang_plugin.page.shared_fetch import SharedFetch

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.requests import Request
    from starlette.responses import Response

logger = logging.getLogger(__name__)

PAGE, DATA = "/adaptive", "/adaptive.json"


def install() -> None:
    """Add the routes to the application of SGLang's HTTP server. After an error it starts without them."""
    try:
        from sglang.srt.entrypoints.http_server import app

        add_routes(app, _from_schedulers, history_route.from_schedulers)
    except Exception:
        logger.exception("adaptive: this server shows no %s", PAGE)


def prompt_for_key(app: FastAPI) -> None:
    """Send browsers a form for the key, outside SGLang's check of keys."""
    try:
        app.add_middleware(KeyPrompt, path=PAGE, page=_page())
    except Exception:
        logger.exception("adaptive: a browser will not be asked for the key of %s", PAGE)


def add_routes(
    app: FastAPI, fetch: Callable[[], Awaitable[bytes]], fetch_history: Callable[[int], Awaitable[bytes]]
) -> None:
    """Add the routes to *app*; does nothing where it has them, as when a process serves a second time."""
    from sglang.srt.utils.auth import AuthLevel, auth_level
    from starlette.responses import Response

    if any(getattr(route, "path", None) == DATA for route in app.router.routes):
        return
    shared = SharedFetch(fetch)
    html, headers = _page()

    # SGLang leaves a plain route open where only an administrator's key is set. This level requires the administrator's
    # key where there is one, otherwise the API key, otherwise none.
    @auth_level(AuthLevel.ADMIN_OPTIONAL)
    async def page(request: Request) -> Response:
        return Response(html, headers=headers)

    @auth_level(AuthLevel.ADMIN_OPTIONAL)
    async def data(request: Request) -> Response:
        access_log.leave_out_polls(DATA)
        return sent(*await answer(shared))

    app.add_route(PAGE, page, methods=["GET"], include_in_schema=False)
    app.add_route(DATA, data, methods=["GET"], include_in_schema=False)
    history_route.add(app, fetch_history)


def _page() -> tuple[bytes, dict[str, str]]:
    """Return the document and its headers."""
    text = document()
    return text.encode(), {
        "content-type": "text/html; charset=utf-8",
        "cache-control": "no-cache",
        "content-security-policy": content_security_policy(text),
        "referrer-policy": "no-referrer",
        "x-content-type-options": "nosniff",
    }


async def _from_schedulers() -> bytes:
    """Ask every scheduler, and return the document of /adaptive.json."""
    import sglang
    from sglang.srt.entrypoints.http_server import get_global_state

    manager = get_global_state().tokenizer_manager
    ranks = await look(manager)
    versions = {"sglang": sglang.__version__, "sglang_adaptive": __version__}
    return payload.encode(ranks, time=time.time(), model=str(manager.served_model_name), versions=versions)
