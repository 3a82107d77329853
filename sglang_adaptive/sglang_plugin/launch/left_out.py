"""Lists the features that an adaptive server lacks with some arguments."""

from __future__ import annotations

from typing import Any


def left_out(server_args: Any) -> list[str]:
    """Return the features that are unavailable with *server_args*, one phrase each."""
    found = []
    if server_args.disaggregation_mode == "decode":
        found.append("the warm-up: a decode server takes no requests of its own")
    return found
