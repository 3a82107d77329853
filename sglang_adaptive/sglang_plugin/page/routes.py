"""GET /adaptive, its data and its history: the page as one document, and the routes, under SGLang's rules for keys."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import logging
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from importlib import resources
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sglang_adaptive import __version__
from sglang_adaptive.runtime.history import SPANS
from sglang_adaptive.sglang_plugin.admin.server_info import HISTORY, look, manager

logger = logging.getLogger(__name__)

PAGE, DATA, HISTORY_PATH = "/adaptive", "/adaptive.json", "/adaptive/history.json"
DEFAULT_SPAN = "900"
VERSION = 1
"""Version of the schema. A new field does not change it; removing a field or changing its meaning raises it."""
SHARED_SECONDS = 1.0
"""Seconds from the start of a fetch for which its answer is shared; a page asks one second after its last answer."""
PATIENCE_SECONDS = 5.0
PARTS = resources.files("sglang_adaptive.sglang_plugin.page") / "assets"
SCRIPTS = ("dom", "words", "history", "record", "worth", "time_charts", "cost_map", "panels", "states", "main")
"""Names of the scripts, in the order of the document."""


def document() -> str:
    """Return the page with style and script inside; it fetches only data from its own server."""
    script = "\n".join(_part(f"{name}.js") for name in SCRIPTS)
    # An end tag in a comment or a string would end the element there.
    assert "</script" not in script and "</style" not in _part("page.css")
    return _part("page.html").replace("/* STYLE */", _part("page.css")).replace("/* SCRIPT */", script)


def content_security_policy(page: str) -> str:
    """Return the content security policy of *page*: its own style and script, its own server, nothing else."""
    style, script = (_hashes(page, element) for element in ("style", "script"))
    return (
        f"default-src 'none'; style-src {style}; script-src {script}; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def _hashes(page: str, element: str) -> str:
    """Return the sources that allow the inline *element*s of *page* and no other."""
    texts = re.findall(rf"<{element}>(.*?)</{element}>", page, re.S)
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts]
    return " ".join(f"'sha256-{digest}'" for digest in digests)


def _part(name: str) -> str:
    return PARTS.joinpath(name).read_text(encoding="utf-8")


# A browser cannot send a key with a typed address. So when SGLang refuses ``GET /adaptive`` with status 401, a browser
# gets the page's document as the body: the same bytes for every server, without data. The document asks for the key,
# keeps it while the tab is open, and sends it with its requests for ``/adaptive.json``, which SGLang refuses without
# it. A client that does not accept HTML gets SGLang's own answer.


class KeyPrompt:
    """ASGI middleware outside SGLang's key check; it changes only the body of one refusal."""

    def __init__(self, app: ASGIApp, form: Response) -> None:
        self._app, self._form = app, form

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on; a browser that is refused the page gets the form."""
        if scope["type"] != "http" or not _is_browser_at_page(scope):
            return await self._app(scope, receive, send)
        refused = False

        async def dressed(message: Message) -> None:
            nonlocal refused
            if message["type"] == "http.response.start" and message["status"] == 401:
                refused = True
                await self._form(scope, receive, send)
            elif not refused:
                await send(message)

        await self._app(scope, receive, dressed)


def _is_browser_at_page(scope: Scope) -> bool:
    if scope["path"].removeprefix(scope.get("root_path", "")) != PAGE or scope["method"] != "GET":
        return False
    return any(name == b"accept" and b"text/html" in value for name, value in scope["headers"])


def data_of(ranks: Iterable[Mapping[str, Any]], **about: Any) -> bytes:
    """Return the JSON document of *ranks*, our part of each data-parallel rank's answer, in any order.

    *about* are the other fields: ``time``, Unix seconds of the answers, and in /adaptive.json ``model``, the name under
    which it is served, and ``versions`` of SGLang and of this package. docs/json.md describes every field.
    """
    ordered = sorted(ranks, key=lambda rank: rank["dp_rank"])
    return orjson.dumps({"version": VERSION, **about, "ranks": ordered})


class SharedFetch:
    """Calls *fetch* at most once per *seconds*, never twice at a time, and only on request."""

    def __init__(
        self,
        fetch: Callable[[], Awaitable[bytes]],
        clock: Callable[[], float] = time.monotonic,
        seconds: float = SHARED_SECONDS,
    ) -> None:
        self._fetch, self._clock, self._seconds = fetch, clock, seconds
        self._task: asyncio.Future[bytes] | None = None
        self._begun = 0.0

    async def latest(self, patience: float = PATIENCE_SECONDS) -> bytes:
        """Return the result of a *fetch* that began within the last *seconds*.

        Raises its error, or TimeoutError after *patience* seconds. A call that takes longer keeps running for the next
        request, so that no queue of requests waits for a scheduler in a long prefill.
        """
        now = self._clock()
        if self._task is None or (self._task.done() and now - self._begun >= self._seconds):
            self._begun = now
            self._task = asyncio.ensure_future(self._fetch())
        done, _ = await asyncio.wait([self._task], timeout=patience)
        if not done:
            raise TimeoutError
        return self._task.result()


async def answered(shared: SharedFetch) -> Response:
    """Return the response with the latest document."""
    try:
        return _json(200, await shared.latest())
    except TimeoutError:
        return problem(503, "the scheduler is busy and has not answered yet")
    except Exception as error:
        logger.debug("adaptive: no data for the page", exc_info=True)
        return problem(500, f"{type(error).__name__}: {error}")


def problem(status: int, message: str) -> Response:
    """Return the response of an error."""
    return _json(status, orjson.dumps({"error": {"message": message}}))


def _json(status: int, body: bytes) -> Response:
    return Response(body, status, {"cache-control": "no-store"}, media_type="application/json")


async def _history_from_schedulers(span: int) -> bytes:
    """Ask every scheduler for its last *span* seconds, and return the document of /adaptive/history.json."""
    return data_of(await look(f"{HISTORY}{span}"), time=time.time())


def install() -> None:
    """Add the routes to the application of SGLang's HTTP server. After an error it starts without them."""
    try:
        from sglang.srt.entrypoints.http_server import app

        add_routes(app, _from_schedulers, _history_from_schedulers)
    except Exception:
        logger.exception("adaptive: this server shows no %s", PAGE)


def prompt_for_key(app: Starlette) -> None:
    """Send browsers a form for the key, outside SGLang's key check."""
    try:
        app.add_middleware(KeyPrompt, form=_page(401, {"www-authenticate": "Bearer"}))
    except Exception:
        logger.exception("adaptive: a browser will not be asked for the key of %s", PAGE)


def add_routes(
    app: Starlette, fetch: Callable[[], Awaitable[bytes]], fetch_history: Callable[[int], Awaitable[bytes]]
) -> None:
    """Add the routes to *app*, unless it has them, as when a process serves a second time.

    *fetch* returns the document of /adaptive.json, *fetch_history* that of a span in seconds.
    """
    from sglang.srt.utils.auth import AuthLevel, auth_level

    if any(getattr(route, "path", None) == DATA for route in app.router.routes):
        return
    shared, shown = SharedFetch(fetch), _page()
    # An answer is shared for half of a bucket's period.
    spans = {
        f"{span}": SharedFetch(partial(fetch_history, span), seconds=max(SHARED_SECONDS, period / 2))
        for span, period in SPANS.items()
    }

    async def page(request: Request) -> Response:
        return shown

    async def data(request: Request) -> Response:
        return await answered(shared)

    async def history(request: Request) -> Response:
        asked = request.query_params.getlist("span") or [DEFAULT_SPAN]
        if len(asked) != 1 or asked[0] not in spans:
            return problem(400, f"span: got {','.join(asked)!r:.80}; expected one of {', '.join(spans)} seconds")
        return await answered(spans[asked[0]])

    # SGLang leaves a plain route open where only an administrator's key is set. This level requires the administrator's
    # key where there is one, otherwise the API key, otherwise none.
    for path, answer in ((PAGE, page), (DATA, data), (HISTORY_PATH, history)):
        app.add_route(path, auth_level(AuthLevel.ADMIN_OPTIONAL)(answer), methods=["GET"], include_in_schema=False)


def _page(status: int = 200, more: Mapping[str, str] | None = None) -> Response:
    """Return the response with the document, and *more* headers."""
    text = document()
    headers = {
        "content-type": "text/html; charset=utf-8",
        "cache-control": "no-cache",
        "content-security-policy": content_security_policy(text),
        "referrer-policy": "no-referrer",
        "x-content-type-options": "nosniff",
    }
    return Response(text, status, {**headers, **(more or {})})


async def _from_schedulers() -> bytes:
    """Ask every scheduler, and return the document of /adaptive.json."""
    import sglang

    ranks, versions = await look(), {"sglang": sglang.__version__, "sglang_adaptive": __version__}
    return data_of(ranks, time=time.time(), model=str(manager().served_model_name), versions=versions)
