"""What /adaptive.json says; every field is described in docs/page.md."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import orjson

VERSION = 1
"""Of the schema. A new field leaves it as it is; one that goes, or changes its meaning, raises it."""


def encode(ranks: Iterable[Mapping[str, Any]], *, time: float, model: str, versions: Mapping[str, str]) -> bytes:
    """Return the JSON document.

    Args:
        ranks: The ``adaptive`` part of each data-parallel rank's internal state, in any order.
        time: Unix time in seconds at which they said it.
        model: Name under which the model is served.
        versions: Versions of SGLang and of this package, by distribution name.
    """
    # The answers come in the order in which the schedulers gave them, another one each time.
    ordered = sorted(ranks, key=lambda rank: rank["dp_rank"])
    return orjson.dumps({"version": VERSION, "time": time, "model": model, "versions": versions, "ranks": ordered})
