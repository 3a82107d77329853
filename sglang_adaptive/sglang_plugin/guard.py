"""When code of this package fails, SGLang's own code runs instead from then on.

With several tensor-parallel ranks, some parts must fall back on all ranks or on none: if one rank skips a draft pass
that the others run, they wait for it forever in a collective. An error caused by shared input occurs on all ranks at
the same place, and there they agree. An error on only one rank ends the server within seconds, with a line that names
the rank.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

from sglang_adaptive.sglang_plugin import features, ranks

logger = logging.getLogger(__name__)

AGREE_WITHIN = timedelta(seconds=10)
"""How long a rank with an error waits for the others to have it too."""
T = TypeVar("T")


class FailedAloneError(RuntimeError):
    """A part failed on this rank but not on another, although all ranks must do the same."""


class Guard:
    """The code of one feature. It closes at the first error and stays closed."""

    def __init__(self, name: str) -> None:
        """*name* is in `features.FEATURES`; the guard is closed from the start if the feature is turned off."""
        self.closed = name in features.turned_off()
        self.error: str | None = None
        """The error that closed it, in one line."""
        self._name = name

    def attempt(self, part: Callable[..., T], *args: Any, **kwargs: Any) -> T | None:
        """Return what *part* returns; None if the guard is closed, or closes now because *part* raised."""
        if self.closed:
            return None
        try:
            return part(*args, **kwargs)
        except Exception as error:
            self.close(error)
            return None

    def close(self, error: Exception) -> None:
        """Run SGLang's code from now on, because of *error*. Raises FailedAloneError if other ranks go on."""
        self.closed = True
        self.error = f"{type(error).__name__}: {error}"
        features.reasons[self._name] = self.error
        logger.error("adaptive: disabled %s after an error; the server goes on without it", self._name, exc_info=error)
        if features.FEATURES[self._name].ranks_alike:
            require_of_all(error)


def require_of_all(error: Exception, within: timedelta = AGREE_WITHIN) -> None:
    """Wait until every rank that runs the same batch has failed here, as this one has with *error*.

    Raises FailedAloneError if one has not failed after *within*.
    """
    import torch.distributed

    group = ranks.of_the_batch()
    if group.world_size == 1:
        return
    try:
        torch.distributed.monitored_barrier(group.cpu_group, timeout=within)
    except RuntimeError as alone:
        raise FailedAloneError(
            f"adaptive: rank {group.rank_in_group} failed and another did not, so the server cannot go on: "
            f"{type(error).__name__}: {error}"
        ) from alone
