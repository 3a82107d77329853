"""Finds the passes of a model that need only a graph, its inputs and its replay.

The answers never change while a server runs, so they are looked up once. SGLang handles unknown setups.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

from sglang_adaptive.sglang_plugin import features
from sglang_adaptive.sglang_plugin.setup import Setup

Plan = TypeVar("Plan")


class Plans(Generic[Plan]):
    """What graphs need for each number of requests, looked up once.

    A plan must not hold its graph's runner, which has a shorter life.
    """

    def __init__(self, name: str) -> None:
        """*name* is the feature's."""
        self._name = name
        self._found: WeakKeyDictionary[Any, dict[int, Plan] | None] = WeakKeyDictionary()
        """By runner or attention backend, and number of requests; None for one that SGLang prepares."""

    def may(self, owner: Any, setup: Callable[[], Setup]) -> bool:
        """Whether *owner*'s passes, with *setup*, do not need SGLang to prepare them."""
        return self._of_owner(owner, setup) is not None

    def of(
        self, runner: Any, requests: int, setup: Callable[[], Setup], made: Callable[[Any, int], Plan]
    ) -> Plan | None:
        """Return *runner*'s plan for *requests*, *made* on first use; None where SGLang has to prepare the pass."""
        plans = self._of_owner(runner, setup) if runner else None
        if plans is None or requests > runner.max_bs:
            return None
        plan = plans.get(requests)
        if plan is None:
            plan = plans[requests] = made(runner, requests)
        return plan

    def _of_owner(self, owner: Any, setup: Callable[[], Setup]) -> dict[int, Plan] | None:
        try:
            return self._found[owner]
        except KeyError:
            found = self._found[owner] = {} if features.may(self._name, setup()) else None
            return found
