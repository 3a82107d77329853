"""Seconds of a round that drafts ``s`` steps and verifies ``b`` drafts a request, from those of other rounds.

    T(n, s, b) = T(n, b) + (s - b) * draft(n) + packing(n)

A round of ``b`` steps verifies as many tokens; the further drafts cost the draft model's passes, and what is verified
has to be chosen and packed. At batch 1 a further step costs hardly more than its draft, so ``draft(1)`` is the mean
step there. On an H200 a drafted step of three shapes takes 1.2 to 1.4 times as long for 64 requests, and packing 0.05
to 0.12 ms (``benchmarks/verify_budget/gpu_cost.py``).
"""

from __future__ import annotations

from collections.abc import Sequence

DRAFT_GROWTH = 1.0 / 200.0
"""By how much a drafted step takes longer with each further request, as a share."""
PACKING, PACKING_A_REQUEST = 5e-5, 8e-7
"""Seconds of choosing, packing and spreading."""
DOUBT = 0.3
"""Relative standard deviation of what a pair is taken to cost beside the round of ``b`` steps."""


def drafted_step(ladder: Sequence[int], alone: Sequence[float], batch_size: int) -> float:
    """Return the seconds of a drafted step of *batch_size* requests; *alone* are round times of one by ladder index."""
    first = next(at for at, steps in enumerate(ladder) if steps)
    steps = ladder[-1] - ladder[first]
    each = (alone[-1] - alone[first]) / steps if steps else 0.0
    return each * (1.0 + DRAFT_GROWTH * (batch_size - 1))


def packing(batch_size: int) -> float:
    """Return the seconds that unequal numbers of drafts cost a round of *batch_size* requests."""
    return PACKING + PACKING_A_REQUEST * batch_size
