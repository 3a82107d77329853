"""Falls back to SGLang's own code from the first error on in code of this package that replaces it."""

from __future__ import annotations

import logging
import os
from types import TracebackType

logger = logging.getLogger(__name__)


class Fallback:
    """One fallback. ``if not fallback.in_use: with fallback: return ours()``, and SGLang's code follows."""

    def __init__(self, from_now_on: str, variable: str | None = None) -> None:
        """*from_now_on* is logged with the traceback; the environment's *variable*, if "0", turns our code off."""
        self.in_use = variable is not None and os.environ.get(variable) == "0"
        self._from_now_on = from_now_on

    def __enter__(self) -> None:
        """Begin the code that may fail."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        """Log an exception, and use the fallback from now on; the caller continues after the ``with``."""
        if not isinstance(error, Exception):
            return False
        self.in_use = True
        logger.error(self._from_now_on, exc_info=error)
        return True
