"""The page as one document, built from its parts, and the form that asks a browser for the server's key."""

from __future__ import annotations

import base64
import hashlib
import re
from importlib import resources
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

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

    def __init__(self, app: ASGIApp, path: str, page: tuple[bytes, dict[str, str]]) -> None:
        self._app, self._path = app, path
        html, headers = page
        fields = {**headers, "content-length": str(len(html)), "www-authenticate": "Bearer"}
        self._start: Message = {
            "type": "http.response.start",
            "status": 401,
            "headers": [(name.encode(), value.encode()) for name, value in fields.items()],
        }
        self._body: Message = {"type": "http.response.body", "body": html}

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
