"""The document of /adaptive.json; docs/json.md describes every field."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import orjson

VERSION = 1
"""Version of the schema. A new field leaves it as it is; removing a field, or changing its meaning, raises it."""


def encode(ranks: Iterable[Mapping[str, Any]], *, time: float, model: str, versions: Mapping[str, str]) -> bytes:
    """Return the JSON document.

    Args:
        ranks: The ``adaptive`` part of each data-parallel rank's internal state, in any order.
        time: Unix time in seconds of their answers.
        model: Name under which the model is served.
        versions: Versions of SGLang and of this package, by distribution name.
    """
    # The answers arrive in any order.
    ordered = sorted(ranks, key=lambda rank: rank["dp_rank"])
    return orjson.dumps({"version": VERSION, "time": time, "model": model, "versions": versions, "ranks": ordered})
