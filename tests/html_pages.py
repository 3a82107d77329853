"""Parses a page as a browser would: checks that it is complete and finds what it fetches."""

from __future__ import annotations

import re
from html.parser import HTMLParser


class Page(HTMLParser):
    """Checks that elements close in order, and collects what a browser would fetch."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.fetched: list[str] = re.findall(r"https?://|@import|url\(", text)
        self.seen: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()

    @property
    def whole(self) -> bool:
        """Whether every element is closed."""
        return not self._open

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.fetched += [value or "" for name, value in attributes if name in ("src", "href", "xlink:href", "srcset")]
        if tag != "meta":
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag
