"""A policy of somebody's own, by the name of what makes it."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from sglang_adaptive.lab.simulate.engine import Drivable
from sglang_adaptive.lab.simulate.errors import SimulationError
from sglang_adaptive.lab.simulate.launch import Launch


def maker(name: str) -> Callable[[Launch], Drivable]:
    """Return the callable that *name*, as in ``package.module:callable``, stands for.

    It is called for every run, with a `Launch`, and returns a fresh policy: SGLang's two methods at least, and best
    those of `sglang_adaptive.policy.base.AdaptivePolicy`.

    Raises:
        SimulationError: there is no such module, no such name in it, or it cannot be called. The
            callable that is returned raises it where *name* fails.
    """
    module, _, attribute = name.partition(":")
    try:
        made: Any = getattr(importlib.import_module(module), attribute)
    except Exception as error:
        raise SimulationError(f"--policy {name}: {type(error).__name__}: {error}; expected MODULE:CALLABLE") from error
    if not callable(made):
        raise SimulationError(f"--policy {name}: a {type(made).__name__}; expected a callable that makes a policy")

    def make(launch: Launch) -> Drivable:
        try:
            policy: Drivable = made(launch)
        except Exception as error:
            raise SimulationError(
                f"--policy {name}: {type(error).__name__}: {error}; "
                "expected a callable that takes a Launch and returns a policy"
            ) from error
        return policy

    return make
