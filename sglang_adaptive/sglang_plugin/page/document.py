"""The page as one document: its parts are files of their own, the browser gets them in one."""

from __future__ import annotations

import base64
import hashlib
import re
from importlib import resources

PARTS = resources.files("sglang_adaptive.sglang_plugin.page") / "assets"
SCRIPTS = ("dom", "words", "history", "record", "worth", "bars", "time_charts", "cost_map", "panels", "states", "main")
"""In the order in which the browser reads them."""


def document() -> str:
    """Return the page: style and script are inside, and nothing is fetched but ``adaptive.json``."""
    script = "\n".join(_part(f"{name}.js") for name in SCRIPTS)
    # An end tag in a comment or a string would end the element there.
    assert "</script" not in script and "</style" not in _part("page.css")
    return _part("page.html").replace("/* STYLE */", _part("page.css")).replace("/* SCRIPT */", script)


def content_security_policy(page: str) -> str:
    """Return the policy under which *page* runs: its own style and script, its own server, nothing else."""
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
