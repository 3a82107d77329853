"""Builds the page as one document from its parts, which are separate files."""

from __future__ import annotations

import base64
import hashlib
import re
from importlib import resources

PARTS = resources.files("sglang_adaptive.sglang_plugin.page") / "assets"
SCRIPTS = ("dom", "words", "history", "record", "worth", "bars", "time_charts", "cost_map", "panels", "states", "main")
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
