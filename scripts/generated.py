"""Parts of a page that a script writes, between ``<!-- name: begin -->`` and ``<!-- name: end -->``."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"


def filled(page: str, parts: Mapping[str, Iterable[str]]) -> str:
    """Return *page* with the lines of each name replaced. Raises ValueError where a name is not marked exactly once."""
    for name, lines in parts.items():
        begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->\n"
        before, rest = page.split(begin)
        _, after = rest.split(end)
        page = "".join([before, begin, *(f"{line}\n" for line in lines), end, after])
    return page


def update(page: Path, parts: Mapping[str, Iterable[str]]) -> int:
    """Write *parts* into *page*; with ``--check`` on the command line, return 1 where they are not current."""
    now = page.read_text()
    then = filled(now, parts)
    if "--check" in sys.argv[1:]:
        return int(now != then)
    page.write_text(then)
    return 0
