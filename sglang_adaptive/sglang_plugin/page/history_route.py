"""GET /adaptive/history.json?span=900: the last minute, quarter of an hour or hour, kept by the schedulers."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import orjson

from sglang_adaptive.runtime.history import SPANS
from sglang_adaptive.sglang_plugin.admin.server_info import HISTORY, look
from sglang_adaptive.sglang_plugin.page import access_log, payload
from sglang_adaptive.sglang_plugin.page.answers import answer, problem, sent
from sglang_adaptive.sglang_plugin.page.shared_fetch import SHARED_SECONDS, SharedFetch

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.requests import Request
    from starlette.responses import Response

PATH = "/adaptive/history.json"
DEFAULT = "900"


def add(app: FastAPI, fetch: Callable[[int], Awaitable[bytes]]) -> None:
    """Add the route to *app*; *fetch* returns the document of a span in seconds."""
    from sglang.srt.utils.auth import AuthLevel, auth_level

    shared = {f"{span}": _shared(fetch, span) for span in SPANS}

    @auth_level(AuthLevel.ADMIN_OPTIONAL)
    async def history(request: Request) -> Response:
        access_log.leave_out_polls(PATH)
        asked = request.query_params.getlist("span") or [DEFAULT]
        if len(asked) != 1 or asked[0] not in shared:
            return sent(400, problem(f"span: got {','.join(asked)!r:.80}; expected one of {', '.join(shared)} seconds"))
        return sent(*await answer(shared[asked[0]]))

    app.add_route(PATH, history, methods=["GET"], include_in_schema=False)


def _shared(fetch: Callable[[int], Awaitable[bytes]], span: int) -> SharedFetch:
    # An answer is shared for half of a bucket's period.
    return SharedFetch(lambda: fetch(span), seconds=max(SHARED_SECONDS, SPANS[span] / 2))


async def from_schedulers(span: int) -> bytes:
    """Ask every scheduler for its last *span* seconds, and return the document."""
    from sglang.srt.entrypoints.http_server import get_global_state

    manager: Any = get_global_state().tokenizer_manager
    return encode(await look(manager, f"{HISTORY}{span}"), time=time.time())


def encode(ranks: Iterable[Mapping[str, Any]], *, time: float) -> bytes:
    """Return the JSON document of *ranks*' histories, in any order, at this Unix time in seconds."""
    ordered = sorted(ranks, key=lambda rank: rank["dp_rank"])
    return orjson.dumps({"version": payload.VERSION, "time": time, "ranks": ordered})
