"""Seconds of a round before any measurement: a profile's cells, completed by a parametric form."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any

from sglang_adaptive.policy.profile import CostProfile
from sglang_adaptive.policy.throughput.readings import CHANGED, NOISE

ANCHORS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
"""Batch sizes at which times are kept, besides a profile's; others have those of the nearest one, scaled by the form.
SGLang captures graphs at most of these."""
FIXED = 0.005
"""Seconds of the form's fixed part: a guess that no decision depends on."""
PER_STEP, PER_TOKEN = 0.037, 0.00276
"""Cost of a draft step and of a token to verify, relative to the fixed part."""
PROFILED, GUESSED = 2.0 * NOISE, CHANGED
"""Relative standard deviation of a time, profiled (like a level of an earlier visit) or not. Profiles of one setup
differ by 2%, but with that a wrong one outvotes a measured difference of 20%. The form is off by 12% at worst."""


def nearness(one: int, other: int) -> float:
    """Return how much alike two batch sizes are: 1 if equal, 0.5 if one is twice the other."""
    return min(one, other) / max(one, other)


def form_seconds(batch_size: int, steps: int) -> float:
    """Return the seconds of a round of *batch_size* requests at *steps*, to use where nothing was measured.

    The ratios are a least-squares fit to a table measured on an H200 (Llama-3.1-8B shape, EAGLE-3, relative error 4% in
    the mean, 12% at worst).
    """
    return FIXED * (1.0 + PER_STEP * steps + PER_TOKEN * batch_size * (steps + 1))


class BaseCost:
    """Seconds and relative standard deviations before any measurement, by batch size and candidate steps."""

    def __init__(self, ladder: Sequence[int], profile: CostProfile | None) -> None:
        self.ladder = tuple(ladder)
        known: dict[int, dict[int, float]] = {}
        for cell in () if profile is None else profile.cells:
            known.setdefault(cell.batch_size, {})[cell.steps] = cell.seconds
        self.profiled = frozenset((batch, steps) for batch, row in known.items() for steps in row)
        """Batch sizes and steps taken directly from the profile."""
        self.anchors = tuple(sorted({*ANCHORS, *known}))
        self._rows = {batch: [_in_row(batch, row, steps) for steps in ladder] for batch, row in known.items()}
        self._deviations = {
            batch: [PROFILED if steps in row else GUESSED for steps in ladder] for batch, row in known.items()
        }
        if not known:
            self._rows[1] = [form_seconds(1, steps) for steps in ladder]
            self._deviations[1] = [GUESSED] * len(ladder)
        self._drafted_step = drafted_step(ladder, self.seconds(1))

    def seconds(self, batch_size: int) -> list[float]:
        """Return seconds by ladder index: linear between profiled batch sizes, scaled by the form outside them."""
        below, above, part = _around(batch_size, self._rows)
        if below == above:
            return self.scaled(self._rows[below], below, batch_size)
        return [a + (b - a) * part for a, b in zip(self._rows[below], self._rows[above], strict=True)]

    def scaled(self, seconds: Sequence[float], known: int, batch_size: int) -> list[float]:
        """Return *seconds* by ladder index at batch size *known*, as the form has them at *batch_size*."""
        both = zip(seconds, self.ladder, strict=True)
        return [t * form_seconds(batch_size, steps) / form_seconds(known, steps) for t, steps in both]

    def deviations(self, batch_size: int) -> list[float]:
        """Return relative standard deviations of :meth:`seconds`."""
        below, above, _ = _around(batch_size, self._deviations)
        least = GUESSED if below == above != batch_size else 0.0
        return [max(least, *pair) for pair in zip(self._deviations[below], self._deviations[above], strict=True)]

    def lookup_seconds(self, batch_size: int, drafts: int) -> float:
        """Return the seconds of a round that looks up *drafts* per request.

        It verifies as many tokens as a larger batch at zero steps, or else at the fewest, and runs the draft once.
        """
        return self.seconds(-(-batch_size * (drafts + 1) // (self.ladder[0] + 1)))[0] + self._drafted_step


def drafted_step(ladder: Sequence[int], alone: Sequence[float]) -> float:
    """Return the seconds of a drafted step at batch 1; *alone* has the round times there by ladder index.

    A profile of a disturbed host may say that more steps take less time; then it is 0.
    """
    first = next(at for at, steps in enumerate(ladder) if steps)
    steps = ladder[-1] - ladder[first]
    return max(0.0, (alone[-1] - alone[first]) / steps) if steps else 0.0


def _around(at: int, known: Mapping[int, Any]) -> tuple[int, int, float]:
    """Return the keys of *known* around *at*, an edge twice, and the fraction between them."""
    keys = sorted(known)
    index = bisect_left(keys, at)
    if index == len(keys) or keys[index] == at or index == 0:
        edge = keys[min(index, len(keys) - 1)]
        return edge, edge, 0.0
    below, above = keys[index - 1], keys[index]
    return below, above, (at - below) / (above - below)


def _in_row(batch: int, row: Mapping[int, float], steps: int) -> float:
    """Return the time at *steps* from the known steps of the same batch size."""
    below, above, part = _around(steps, row)
    if below == above:
        return row[below] * form_seconds(batch, steps) / form_seconds(batch, below)
    return row[below] + (row[above] - row[below]) * part
