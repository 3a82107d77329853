"""Ways of this package to do what SGLang does otherwise: a fault ends the way that it is in, and no request."""

from __future__ import annotations

import logging
import os
from types import TracebackType

logger = logging.getLogger(__name__)


class OwnWay:
    """One such way: ``if way.used`` it is gone ``with way:``; where that does not return, SGLang's way follows."""

    def __init__(self, from_now_on: str, variable: str | None = None) -> None:
        """*from_now_on* is logged with a fault's traceback; the environment's *variable*, if 0, leaves SGLang's way."""
        self.used = variable is None or os.environ.get(variable) != "0"
        self._from_now_on = from_now_on

    def __enter__(self) -> None:
        """Begin what may fail."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        """End it; an exception ends this way, and goes no further."""
        if not isinstance(error, Exception):
            return False
        self.used = False
        logger.error(self._from_now_on, exc_info=error)
        return True
