"""What rounds with a budget came to, and how right the draft's chances were, for monitoring."""

from __future__ import annotations

from typing import Any

from sglang_adaptive.runtime.calibration import BINS, UNITS, Calibration
from sglang_adaptive.runtime.counters import Counters


def budget_report(budget: int | None, counters: Counters, calibration: Calibration) -> dict[str, Any]:
    """Return as JSON builtins

    - ``budget``: of the latest round, None where it verified all drafts;
    - ``rounds``: rounds with a budget, by ``steps`` and ``budget``;
    - ``verified_per_request``: mean drafts verified of a request in all rounds that drafted, None without any;
    - ``calibration``: by bin of the chance that the draft gives its token, ``from`` and ``to``: the drafts that were
      verified and reached (``trials``), the mean chance (``believed``) and the share of them that was ``accepted``.
    """
    return {
        "budget": budget,
        "rounds": [
            {"steps": steps, "budget": kept, "rounds": rounds}
            for (steps, kept), rounds in sorted(counters.budgets.items())
        ],
        "verified_per_request": counters.verified_per_request(),
        "calibration": [_bin(calibration, at) for at in range(BINS)],
    }


def _bin(calibration: Calibration, at: int) -> dict[str, Any]:
    trials = calibration.trials[at]
    return {
        "from": at / BINS,
        "to": (at + 1) / BINS,
        "trials": trials,
        "believed": calibration.believed[at] / UNITS / trials if trials else None,
        "accepted": calibration.accepted[at] / trials if trials else None,
    }
