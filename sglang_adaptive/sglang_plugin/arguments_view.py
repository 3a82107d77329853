"""A view of a server's arguments in which SGLang reads some of them differently."""

from __future__ import annotations

from typing import Any


class AsIf:
    """The arguments of *server_args*, but for *values*."""

    def __init__(self, server_args: Any, **values: Any) -> None:
        self._server_args = server_args
        declared = getattr(server_args, "_resolved_overrides", None) or ()
        # SGLang's views read this first; the last entry wins.
        self._resolved_overrides = [*declared, ("sglang-adaptive", values)]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._server_args, name)
