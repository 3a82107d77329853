"""The fields that docs/json.md documents, compared with what is sent."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sglang_adaptive.sglang_plugin.page import routes

DOCUMENT = Path(__file__).parents[1] / "docs" / "json.md"
OPAQUE = (
    "versions.",
    *(f"ranks[].{key}." for key in ("profile_key", "config", "startup", "off", "zero_steps", "short_rounds")),
    "ranks[].alarms[].details.",
)
"""Objects whose contents are documented at their source."""
KINDS = {
    "integer": lambda value: type(value) is int,
    "number": lambda value: type(value) in (int, float),
    "string": lambda value: type(value) is str,
    "boolean": lambda value: type(value) is bool,
    "null": lambda value: value is None,
    "list": lambda value: type(value) is list,
    "object": lambda value: type(value) is dict,
}


def paths(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every field as its documented path, with list items as [] and depth keys as *."""
    if isinstance(value, dict):
        by_depth = bool(value) and all(key.isdigit() for key in value)
        for key, inner in value.items():
            path = f"{prefix}.*" if by_depth else f"{prefix}.{key}".lstrip(".")
            yield path, inner
            yield from paths(inner, path)
    elif isinstance(value, list):
        for inner in value:
            yield from paths(inner, f"{prefix}[]")


def documented(address: str = routes.DATA) -> dict[str, str]:
    """Return the documented type of each path of *address*."""
    section = DOCUMENT.read_text().partition(f"\n## `{address}`\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`[a-z_.\[\]*`, ]+) \| ([a-z, ]+) \|", section, re.M)
    return {path: kinds for paths, kinds in rows for path in re.findall("`([^`]+)`", paths)}


def documented_paths(document: dict[str, Any], address: str = routes.DATA) -> set[str]:
    """Return the paths in *document*; fail if one is undocumented or has another type."""
    listed, seen = documented(address), set()
    for path, value in paths(document):
        if not path.startswith(OPAQUE):
            assert path in listed, f"{path} is sent and not documented"
            kinds = listed[path].split(", ")
            assert any(KINDS[kind](value) for kind in kinds), f"{path} is {value!r}, documented as {listed[path]}"
            seen.add(path)
    return seen
