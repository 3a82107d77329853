"""What a round costs whose requests verify different numbers of drafts, as far as measured rounds can tell.

A profile has rounds in which all requests draft and verify alike. The model, fitted to them:

    seconds(B, s, n) = base(B) + (draft + dear * B) * s + verify(n)

with B requests, s drafted steps and n verified tokens, n = B * (s + 1) in every measured round. ``verify`` is linear
between knots and never falls.

What a drafted step costs a request, ``dear``, cannot be told from such rounds: as B * s = n - B, it might as well be a
part of ``verify`` and ``base``. So it is assumed, as a share of what a verified token costs, or taken from a GPU's own
measurement (gpu_cost.py), with which goes what packing a ragged batch costs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls

KNOTS = (2, 8, 16, 32, 64, 128, 192, 256, 384, 512)
"""Verified tokens. On H200s times rise in steps of 64 to 128 tokens (the tiles of a matrix product)."""

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Extra:
    """What a GPU says of the parts of a ragged round, for one shape of target and draft."""

    drafted: float
    """Seconds that one more request adds to a drafted step."""
    packing: Mapping[int, float]
    """By batch size, seconds of ranking, packing and spreading, and by which a ragged attention is slower."""


def read_extra(path: Path, context: int = 1_000) -> Extra:
    """Return what gpu_cost.py wrote to *path* for requests of *context* tokens, greedy ones."""
    cells = [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["context"] == context]
    slope = np.polyfit([cell["batch"] for cell in cells], [cell["draft_step"] for cell in cells], 1)[0]
    packing = {cell["batch"]: fmean(_packing(cell[key]) for key in cell if key.startswith("budget")) for cell in cells}
    return Extra(float(slope) / 1000, {batch: spent / 1000 for batch, spent in packing.items()})


def _packing(cell: Mapping[str, float]) -> float:
    return cell["rank"] + cell["pack"] + cell["spread"] + cell["ragged"] - cell["rectangle"]


@dataclass(frozen=True, eq=False)
class Prices:
    """The fitted model. Beyond the measured batches and tokens it goes on as over their last two intervals."""

    batches: tuple[int, ...]
    base: FloatArray
    """[batches] seconds that a batch size costs by itself."""
    draft: tuple[float, float]
    """Seconds of a drafted step: a constant, and per request."""
    verify: FloatArray
    """[KNOTS] seconds of verifying so many tokens."""
    worst_error: float
    """Largest |fitted - measured| of the profile's rounds that drafted, seconds."""
    worst_share: float
    """The same as a share of the measured time."""
    plain: FloatArray
    """[batches] measured seconds of a round without drafts."""
    extra: Extra | None = None
    """What was measured beside such rounds; without it a drafted token is assumed and packing is free."""

    def seconds(self, batch: int, steps: int, tokens: npt.ArrayLike) -> FloatArray:
        """Return the seconds of rounds of *batch* requests that draft *steps* and verify *tokens* in all."""
        own = _line(np.array(float(batch)), self.batches, self.base) + (self.draft[0] + self.draft[1] * batch) * steps
        return np.asarray(own + _line(np.asarray(tokens, float), KNOTS, self.verify))

    def ragged(self, batch: int, steps: int, tokens: npt.ArrayLike) -> FloatArray:
        """Return the same where requests verify different numbers of drafts: packing comes on top."""
        packing = self.extra.packing if self.extra else {batch: 0.0}
        return self.seconds(batch, steps, tokens) + float(np.interp(batch, [*packing], [*packing.values()]))

    def without_drafts(self, batch: int) -> float:
        """Return the seconds of a round of *batch* requests at zero steps: as measured, and beyond as in the model."""
        most = self.batches[-1]
        beyond = float(self.seconds(batch, 0, batch) - self.seconds(most, 0, most)) if batch > most else 0.0
        return float(np.interp(batch, self.batches, self.plain)) + beyond

    def measured(self, batch: int, tokens: int) -> bool:
        """Return whether the profile has rounds of so many requests and of so many tokens."""
        return batch <= self.batches[-1] and tokens <= KNOTS[-1]


def fit(cells: Mapping[tuple[int, int], float], draft_share: float = 0.0, extra: Extra | None = None) -> Prices:
    """Return the model of *cells*, seconds by (batch, steps), by least squares with no part negative.

    *draft_share* is what a drafted token costs of a verified one, on average between 64 and 512 tokens; *extra*, where
    it was measured, says it in seconds.
    """
    dear = extra.drafted if extra else 0.0
    if draft_share:
        cheap = fit(cells)
        dear = draft_share * float(cheap.verify[-1] - cheap.verify[KNOTS.index(64)]) / (KNOTS[-1] - 64)
    batches = tuple(sorted({batch for batch, _ in cells}))
    drafting = [(batch, steps) for batch, steps in sorted(cells) if steps]
    rows = []
    for batch, steps in drafting:
        own = [float(batch == other) for other in batches]
        reached = [_part(batch * (steps + 1), low, high) for low, high in pairwise(KNOTS)]
        rows.append([*own, float(steps), *reached])
    measured = np.array([cells[cell] for cell in drafting])
    drafted = np.array([dear * batch * steps for batch, steps in drafting])
    # Each row by its own time, so that the long rounds of large batches do not decide alone.
    found, _ = nnls(np.array(rows) / measured[:, None], (measured - drafted) / measured)
    several = len(batches)
    verify = np.concatenate([[0.0], np.cumsum(found[several + 1 :])])
    error = np.abs(np.array(rows) @ found + drafted - measured)
    return Prices(
        batches,
        found[:several],
        (float(found[several]), dear),
        verify,
        float(error.max()),
        float((error / measured).max()),
        np.array([cells[batch, 0] for batch in batches]),
        extra,
    )


def _part(tokens: float, low: int, high: int) -> float:
    """Return how much of the way from *low* to *high* lies below *tokens*, 0 to 1."""
    return min(max((tokens - low) / (high - low), 0.0), 1.0)


def _line(at: FloatArray, xs: tuple[int, ...], ys: FloatArray) -> FloatArray:
    """Return the line through (xs, ys) at *at*: flat below, and above as over the last two intervals."""
    slope = (ys[-1] - ys[-3]) / (xs[-1] - xs[-3])
    return np.asarray(np.interp(at, xs, ys) + np.maximum(at - xs[-1], 0.0) * slope)
