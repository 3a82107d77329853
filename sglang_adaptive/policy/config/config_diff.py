"""What differs between two configurations, in a few words: for the log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sglang_adaptive.policy.errors import shown

MOST_SHOWN = 8
_ABSENT = object()


def describe_change(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """Return "key: old -> new" of every key that differs, as in ``8.ema_alpha: 0.2 -> 0.3``; one line.

    Both are what ``AdaptiveConfig.as_dict`` returns, so a default that was spelt out is no difference.
    """
    found = [f"{key}: {_value(old)} -> {_value(new)}" for key, old, new in _differences(before, after, "")]
    if not found:
        return "nothing differs"
    more = len(found) - MOST_SHOWN
    return ", ".join(found[:MOST_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _differences(before: Mapping[str, Any], after: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any, Any]]:
    for key in (*before, *(key for key in after if key not in before)):
        old, new = before.get(key, _ABSENT), after.get(key, _ABSENT)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from _differences(old, new, f"{prefix}{key}.")
        elif old is _ABSENT or new is _ABSENT or old != new:
            yield f"{prefix}{key}", old, new


def _value(value: Any) -> str:
    return "none" if value is _ABSENT else shown(value)
