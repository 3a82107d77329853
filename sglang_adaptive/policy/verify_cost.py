"""Measured cost of DSPARK rounds by requests and verified tokens, and which rounds to try.

A round pays for its requests and for the tokens that its verify pass is padded to, a *tier* with CUDA graphs. Its time
is modeled as the sum of both parts (SGLang's ``SpsAdditiveCostTable``); measurements at the same number of requests
count more. A round that verifies everything is `WHOLE`. It is prepared once instead of each time, so it is kept apart
from a planned round that happens to verify as much.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from sglang_adaptive.policy.profile import CostProfile, ProfileCell, ProfileKey, ordered
from sglang_adaptive.policy.throughput.cost import ascending

WHOLE = 0
"""Instead of tokens: all drafts of all requests are verified."""

KEPT = 31
"""Latest times kept per cell; their median is used, which tolerates outliers in up to half of them."""
ENOUGH = 8
"""Times of a cell before a decision uses it."""
MOST_CELLS = 1024
PULL = 0.5
"""Weight, in times, that pulls the requests' part to 0, so that cost the data cannot separate goes to the tokens."""
SWEEPS, SWEEPS_AGAIN = 40, 8
"""Passes over the cells to fit the parts: the first time, and starting from an earlier fit."""
MOST_FITTED = 256
"""Cells in a fit, those with the most times first: a fit takes milliseconds in the scheduler."""
LEAST_GAIN = 0.03
"""Share of its round that the smallest verify pass must save before budgets are planned; medians err by 1%."""

Cell = tuple[int, int]
"""Requests, and tier or `WHOLE`."""
Known = Mapping[Cell, tuple[float, int]]
"""By cell, median seconds and the number of times behind it."""


class Grid:
    """The tiers that a verify pass can be padded to."""

    def __init__(self, tiers: Sequence[int], drafts: int) -> None:
        """*tiers* are the token counts with CUDA graphs; *drafts* is the number of drafts per request."""
        self.tiers, self.drafts = sorted(tiers), drafts

    def padded(self, tokens: int) -> int | None:
        """Return the tier that *tokens* are padded to; None past the last."""
        at = bisect_left(self.tiers, tokens)
        return self.tiers[at] if at < len(self.tiers) else None

    def of(self, requests: int) -> list[int]:
        """Return the tiers of *requests*, from one token each to all; empty if not all fit."""
        low, high = self.padded(requests), self.padded(requests * (self.drafts + 1))
        if low is None or high is None:
            return []
        return self.tiers[bisect_left(self.tiers, low) : bisect_left(self.tiers, high) + 1]

    def tried(self, requests: int) -> list[int]:
        """Return at most five tiers of *requests*, including the smallest and the largest."""
        tiers = self.of(requests)
        return sorted({tiers[round(part * (len(tiers) - 1) / 4)] for part in range(5)}) if tiers else []


@dataclass(frozen=True, slots=True)
class Additive:
    """Seconds of a round: ``requests[r] + tokens[m] + planning``, the last only if the round is not whole."""

    requests: Mapping[int, float]
    tokens: Mapping[int, float]
    planning: float

    def seconds(self, requests: int, tokens: int, planned: bool = True) -> float:
        """Return the time of a round: linear between measured numbers, constant past them."""
        extra = self.planning if planned else 0.0
        return _on_line(self.requests, requests) + _on_line(self.tokens, tokens) + extra


def fit(known: Known, grid: Grid, before: Additive | None = None) -> Additive | None:
    """Return the least-squares fit to *known*, weighted by the times behind each cell; None without a time.

    No part decreases as requests or tokens grow. *before* is the starting point.
    """
    rows: list[tuple[int, int, bool, float, float]] = []
    fitted = sorted(known.items(), key=lambda cell: (-cell[1][1], cell[0]))[:MOST_FITTED]
    for (requests, tokens), (seconds, times) in sorted(fitted):
        paid = grid.padded(requests * (grid.drafts + 1)) if tokens == WHOLE else tokens
        if paid is not None:
            rows.append((requests, paid, tokens != WHOLE, seconds, float(times)))
    if not rows:
        return None
    mean = sum(s * w for *_, s, w in rows) / sum(w for *_, w in rows)
    of_requests = dict.fromkeys((r for r, *_ in rows), 0.0)
    of_tokens = dict.fromkeys((m for _, m, *_ in rows), mean)
    planning = 0.0
    if before is not None:
        of_requests = {r: _on_line(before.requests, r) for r in of_requests}
        planning = before.planning
    for _ in range(SWEEPS if before is None else SWEEPS_AGAIN):
        of_tokens = _part([(m, s - of_requests[r] - planning * p, w) for r, m, p, s, w in rows], 0.0)
        of_requests = _part([(r, s - of_tokens[m] - planning * p, w) for r, m, p, s, w in rows], PULL)
        left = [(s - of_requests[r] - of_tokens[m], w) for r, m, p, s, w in rows if p]
        planning = max(0.0, sum(e * w for e, w in left) / (sum(w for _, w in left) + PULL))
    return Additive(of_requests, of_tokens, planning)


def _part(rows: Iterable[tuple[int, float, float]], pull: float) -> dict[int, float]:
    """Return the ascending weighted means of (number, seconds, weight) by number, each pulled to 0 by *pull*."""
    sums: dict[int, tuple[float, float]] = {}
    for number, seconds, weight in rows:
        total, mass = sums.get(number, (0.0, pull))
        sums[number] = total + seconds * weight, mass + weight
    numbers = sorted(sums)
    means = ascending([sums[n][0] / sums[n][1] for n in numbers], [sums[n][1] for n in numbers])
    return dict(zip(numbers, means, strict=True))


def _on_line(known: Mapping[int, float], at: int) -> float:
    numbers = sorted(known)
    index = bisect_left(numbers, at)
    if index == len(numbers) or numbers[index] == at or index == 0:
        return known[numbers[min(index, len(numbers) - 1)]]
    below, above = numbers[index - 1], numbers[index]
    return known[below] + (known[above] - known[below]) * (at - below) / (above - below)


@dataclass(frozen=True, slots=True)
class Costs:
    """Estimated times of rounds with one number of requests."""

    requests: int
    seconds: Mapping[int, float]
    """By tier, ascending; the last is a round that verifies everything."""
    why_not: str | None
    """Why budgets are not planned; None if they are."""

    @property
    def gain(self) -> float:
        """Time that the smallest verify pass saves against a whole round, as a share of the smaller round."""
        times = list(self.seconds.values())
        return times[-1] / times[0] - 1.0 if times else 0.0


UNKNOWN = "too few rounds of this size were measured"
ONE_TIER = "every verify pass of this many requests is padded to the same tokens"
NOT_CAPTURED = "this many requests have no CUDA graph"
TOO_LITTLE = "the smallest verify pass saves less than 3% of a round"


class VerifyCosts:
    """Measured times of a server's rounds; a ``KeepsProfile``, so they are shared and saved like a policy's times."""

    def __init__(self, drafts: int, options: Any, profile: CostProfile | None = None) -> None:
        """*drafts* is the number per request; *options* are the throughput policy's."""
        self.drafts, self.options = drafts, options
        self.rounds = 0
        """Measured rounds."""
        self.from_profile = 0
        """Cells known at the start."""
        self._recent: dict[Cell, deque[float]] = {}
        self._counts: dict[Cell, int] = {}
        self._known: dict[Cell, tuple[float, int]] = {}
        """The table shared last, equal on every rank."""
        self._start: dict[Cell, tuple[float, int]] = {}
        self._model: Additive | None = None
        self._rows: dict[int, Costs] = {}
        for cell in () if profile is None else profile.cells:
            if cell.steps == drafts:
                at = (cell.batch_size, WHOLE if cell.tokens is None else cell.tokens)
                self._start[at] = cell.seconds, min(KEPT, ENOUGH if cell.rounds is None else cell.rounds)
        self.from_profile = len(self._start)

    def add(self, requests: int, tokens: int, seconds: float) -> None:
        """Add the time of a round; *tokens* is the tier that it was padded to, or `WHOLE`."""
        at = (requests, tokens)
        recent = self._recent.get(at)
        if recent is None:
            if len(self._recent) >= MOST_CELLS:
                self._recent.pop(next(iter(self._recent)))
            recent = self._recent[at] = deque(maxlen=KEPT)
        recent.append(seconds)
        self._counts[at] = self._counts.get(at, 0) + 1
        self.rounds += 1

    # -- shared between ranks ----------------------------------------------------------------------------------------

    def export_cost(self) -> list[tuple[int, int, float, int]]:
        """Return (requests, tokens, median seconds, times) of every cell, for `import_cost` on each rank."""
        found = {at: (median(recent), len(recent)) for at, recent in self._recent.items()}
        for at, cell in self._start.items():
            if at not in found or found[at][1] < ENOUGH:
                found[at] = cell
        return [(*at, *cell) for at, cell in sorted(found.items())]

    def import_cost(self, shared: Iterable[tuple[int, int, float, int]], grid: Grid) -> None:
        """Base decisions on *shared*; equal tables give equal decisions on every rank."""
        self._known = {(requests, tokens): (seconds, times) for requests, tokens, seconds, times in shared}
        self._model = fit(self._known, grid, self._model)
        self._rows.clear()

    # -- decisions from the shared table -------------------------------------------------------------------------------

    def at(self, requests: int, grid: Grid) -> Costs:
        """Return the costs of rounds of *requests*."""
        found = self._rows.get(requests)
        if found is None:
            found = self._rows[requests] = self._costs(requests, grid)
        return found

    def _costs(self, requests: int, grid: Grid) -> Costs:
        tiers = grid.of(requests)
        if not tiers:
            return Costs(requests, {}, NOT_CAPTURED)
        if len(tiers) == 1:
            return Costs(requests, {}, ONE_TIER)
        if self._model is None or not self._spans(requests, tiers):
            return Costs(requests, {}, UNKNOWN)
        guess = [self._model.seconds(requests, tier) for tier in tiers[:-1]]
        guess.append(self._model.seconds(requests, tiers[-1], planned=False))
        times, weights = [], []
        for tier, seconds in zip([*tiers[:-1], WHOLE], guess, strict=True):
            own, count = self._known.get((requests, tier), (0.0, 0))
            part = count / (count + ENOUGH / 2)
            times.append(part * own + (1.0 - part) * seconds)
            weights.append(1.0 + count)
        found = Costs(requests, dict(zip(tiers, ascending(times, weights), strict=True)), None)
        return found if found.gain > LEAST_GAIN else Costs(requests, found.seconds, TOO_LITTLE)

    def _spans(self, requests: int, tiers: Sequence[int]) -> bool:
        """Whether times were measured near both ends of *tiers* and near this number of *requests*."""
        sure = [at for at, (_, times) in self._known.items() if times >= ENOUGH]
        near = [r for r, _ in sure if requests / 2 <= r <= 2 * requests]
        planned = [tokens for _, tokens in sure if tokens != WHOLE]
        low = any(tiers[0] <= tokens <= max(tiers[1], 2 * tiers[0]) and tokens < tiers[-1] for tokens in planned)
        high = any(tokens >= tiers[-1] for tokens in planned) or any(
            tokens == WHOLE and r >= requests for r, tokens in sure
        )
        return bool(near) and low and high

    def table(self, grid: Grid) -> dict[str, Any] | None:
        """Return the fit in the fields of SGLang's ``SpsAdditiveCostTable``; None before the first fit."""
        if self._model is None:
            return None
        least = min(self._model.tokens.values()) + min(self._model.requests.values())
        bias = max(1e-9, 0.5 * least)
        tokens, seconds = steps({m: s - bias + self._model.planning for m, s in self._model.tokens.items()})
        return {
            "bias_seconds": bias,
            "bs_probes": sorted(self._model.requests),
            "alpha_seconds": [self._model.requests[r] for r in sorted(self._model.requests)],
            "m_probes": tokens,
            "theta_seconds": seconds,
        }

    # -- kept between starts -------------------------------------------------------------------------------------------

    def export_profile(self, key: ProfileKey, measured: str) -> CostProfile:
        """Return the times that this server measured; *measured* describes how, in words."""
        return CostProfile(key, ordered(self._cells({})), measured)

    def known_profile(self, key: ProfileKey, measured: str) -> CostProfile:
        """Return the same, completed with the times that the server was started with."""
        return CostProfile(key, ordered(self._cells(self._start)), measured)

    def _cells(self, start: Known) -> Iterator[ProfileCell]:
        own = {at: (median(recent), self._counts[at]) for at, recent in self._recent.items() if len(recent) >= ENOUGH}
        for (requests, tokens), (seconds, times) in {**start, **own}.items():
            paid = None if tokens == WHOLE else tokens
            yield ProfileCell(requests, self.drafts, seconds, times, paid)


def steps(seconds: Mapping[int, float]) -> tuple[list[int], list[float]]:
    """Return *seconds* by tier as points of a line for SGLang, on which all token counts up to a tier cost the same."""
    points: dict[int, float] = {}
    before: int | None = None
    for tier in sorted(seconds):
        if before is not None:
            points[before + 1] = seconds[tier]
        points[tier] = seconds[tier]
        before = tier
    return list(points), list(points.values())


BURST = 4
"""Consecutive rounds tried with the same budget: the first ones may wait for work launched before."""
SPACING = 24
"""Minimum rounds between two bursts."""
AT_FIRST, SHARE, SHARE_LATER = 96, 64, 256
"""Trial rounds allowed at server start, plus one in so many of all rounds; later, once each tier was tried."""
TRIED = 64
"""Trial rounds after which a tier counts as tried."""


@dataclass(slots=True)
class Trials:
    """Chooses the rounds that run another budget to measure it; equal rounds give equal choices."""

    launched: int = 0
    tried: int = 0
    _counts: dict[Cell, int] = field(default_factory=dict)
    _last: int = 0
    _requests: int = 0
    _burst: tuple[int, int] = (0, 0)
    """Tokens and rounds left."""

    def next(self, requests: int, grid: Grid, runs: int | None) -> int | None:
        """Return the tier to try in the coming round of *requests*, None for no trial; called once per round.

        *runs* is the tier of these rounds without a trial, which needs no trial; None if not known in advance.
        """
        self.launched += 1
        steady, self._requests = requests == self._requests, requests
        tokens, left = self._burst
        if left and steady:
            return self._take(requests, tokens, left)
        self._burst = (0, 0)
        if not steady or self.launched - self._last < SPACING:
            return None
        tiers = grid.tried(requests)
        if len(tiers) < 2:
            return None
        tiers = [tier for tier in tiers if tier != runs]
        least = min(tiers, key=lambda tier: (self._counts.get((requests, tier), 0), tier))
        done = self._counts.get((requests, least), 0) >= TRIED
        if self.tried + BURST > AT_FIRST + self.launched // (SHARE_LATER if done else SHARE):
            return None
        return self._take(requests, least, BURST)

    def _take(self, requests: int, tokens: int, left: int) -> int:
        if len(self._counts) >= MOST_CELLS:
            self._counts.clear()
        self._counts[requests, tokens] = self._counts.get((requests, tokens), 0) + 1
        self.tried += 1
        self._last, self._burst = self.launched, (tokens, left - 1)
        return tokens
