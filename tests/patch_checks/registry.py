"""The checks by name, and whether stock SGLang passes them."""

from __future__ import annotations

from collections.abc import Callable

Check = Callable[[], None]
REPAIRED: dict[str, Check] = {}
"""Checks that fail on stock 0.5.23."""
KEPT: dict[str, Check] = {}
"""Checks that pass on stock 0.5.23 and must keep passing."""


def repaired(check: Check) -> Check:
    """Register *check* as one that stock SGLang fails."""
    REPAIRED[check.__name__] = check
    return check


def kept(check: Check) -> Check:
    """Register *check* as one that stock SGLang passes too."""
    KEPT[check.__name__] = check
    return check
