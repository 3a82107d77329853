"""Which colour class of the page's style a contender has."""

from __future__ import annotations


def colour(name: str) -> str:
    """Return the class for a policy by its name or label."""
    low = name.lower()
    if low.startswith("static"):
        return "static"
    if "throughput" in low:
        return "throughput"
    return "ema-all" if "ema-all" in low else "ema" if "ema" in low else "oracle" if low == "none" else "throughput"
