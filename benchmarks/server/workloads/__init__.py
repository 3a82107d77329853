"""The workloads: each drives contenders in turn and yields rows of the result as they get ready."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from benchmarks.server.passes import Contender
from benchmarks.server.workloads.first_use import first_use
from benchmarks.server.workloads.open_loop import open_loop
from benchmarks.server.workloads.plan import Clock, Note, Plan, Row
from benchmarks.server.workloads.stationary import cells, heterogeneous, warm_up
from benchmarks.server.workloads.steady import steady_load
from benchmarks.server.workloads.switch_cost import switch_cost
from benchmarks.server.workloads.switching import acceptance_switching, load_switching

__all__ = ["WORKLOADS", "Clock", "Plan", "Row", "warm_up"]

WORKLOADS: dict[str, Callable[[Sequence[Contender], Plan, Clock, Note], Iterator[Row]]] = {
    "first-use": first_use,
    "cells": cells,
    "heterogeneous": heterogeneous,
    "acceptance": acceptance_switching,
    "load": load_switching,
    "steady": steady_load,
    "open": open_loop,
    "switch-cost": switch_cost,
}
