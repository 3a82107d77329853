"""Answers of the page's data routes: JSON, never cached, and a failure as one line."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import orjson

from sglang_adaptive.sglang_plugin.page.shared_fetch import SharedFetch

if TYPE_CHECKING:
    from starlette.responses import Response

logger = logging.getLogger(__name__)


async def answer(shared: SharedFetch) -> tuple[int, bytes]:
    """Return status and body."""
    try:
        return 200, await shared.latest()
    except TimeoutError:
        return 503, problem("the scheduler is busy and has not answered yet")
    except Exception as error:
        logger.debug("adaptive: no data for the page", exc_info=True)
        return 500, problem(f"{type(error).__name__}: {error}")


def problem(message: str) -> bytes:
    """Return the body of an error."""
    return orjson.dumps({"error": {"message": message}})


def sent(status: int, body: bytes) -> Response:
    """Return the response with *body*."""
    from starlette.responses import Response

    return Response(body, status, {"content-type": "application/json", "cache-control": "no-store"})
