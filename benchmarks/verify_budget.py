"""Simulate the policy that chooses verify budgets on recorded text, compared with the same policy without budgets.

    python -m benchmarks.verify_budget [--batches 4,8,...] [--output FILE]

Requests of SmolLM2's traces keep a batch full. The policy chooses steps and budget before every round, as on a server:
the result of a round arrives after the next choice, and measured round times are noisy. Times of rounds without a
budget were measured on H200s (the shipped profiles). Times of ragged rounds are modeled from them and from the times of
drafts and packing that benchmarks.verify_budget_cost measured. Both policies are compared with the best uniform depth,
known in hindsight. Takes minutes on one core. docs/architecture.md explains budgets.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls

from benchmarks.harness.results import Report, command_parser
from benchmarks.harness.start import ints
from sglang_adaptive.lab.simulate.cost import load_cost
from sglang_adaptive.lab.simulate.engine import hand_over_cost
from sglang_adaptive.lab.simulate.ours import KEY
from sglang_adaptive.lab.simulate.trace import clock_factors
from sglang_adaptive.lab.traces import Trace, read
from sglang_adaptive.policy.observation import BudgetEvidence, RoundObservation
from sglang_adaptive.policy.profile import CostProfile, ProfileCell, ordered, shipped_config
from sglang_adaptive.policy.throughput import ThroughputOptions, ThroughputPolicy
from sglang_adaptive.runtime.budgets import BINS, UNITS, Calibration, budgets_seen, looked_steps
from sglang_adaptive.runtime.round_times import RoundClock

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
Place = tuple[int, int]
"""Steps and budget; without a budget, the steps twice."""

FOLDER = Path(__file__).parent
GPU_COST = FOLDER / "results" / "verify_budget" / "gpu"
"""Results of benchmarks.verify_budget_cost, for the profiles whose names begin with the file's."""

BATCHES, SEEDS = (4, 8, 16, 32, 64, 128), (0, 1)
TOKENS_A_REQUEST = 6_000
"""Tokens of a run per place of the batch: about 2,500 rounds of greedy text."""

LADDER = (0, 1, 2, 3, 5, 7)
LAUNCH_STEPS = 3
IN_TURN = "greedy text and temperature 1 in turn"
STARTS = {"from a profile": True, "from nothing": False}
"""Whether the policy starts with the measured rounds as its profile."""

SURE = 0.999
"""Upper limit of a draft's confidence, so that products fall along a chain and the kept drafts are a prefix."""

REPEATED = 0.02
"""Share of the positions above which exact repetitions warrant a second run without them."""

# -- what a round costs ---------------------------------------------------------------------------------------------

KNOTS = (2, 8, 16, 32, 64, 128, 192, 256, 384, 512)
"""Verified tokens. On H200s times rise in steps of 64 to 128 tokens (the tiles of a matrix product)."""


@dataclass(frozen=True)
class Extra:
    """GPU measurements of the parts of a ragged round, for one shape of target and draft."""

    drafted: float
    """Seconds that one more request adds to a drafted step."""
    packing: Mapping[int, float]
    """By batch size, seconds of ranking, packing and spreading, and the slowdown of a ragged attention."""


def read_extra(path: Path, context: int = 1_000) -> Extra:
    """Return the results of verify_budget_cost in *path* for greedy requests of *context* tokens."""
    cells = [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["context"] == context]
    slope = np.polyfit([cell["batch"] for cell in cells], [cell["draft_step"] for cell in cells], 1)[0]

    def packing(one: Mapping[str, float]) -> float:
        return one["rank"] + one["pack"] + one["spread"] + one["ragged"] - one["rectangle"]

    spent = {cell["batch"]: fmean(packing(cell[key]) for key in cell if key.startswith("budget")) for cell in cells}
    return Extra(float(slope) / 1000, {batch: ms / 1000 for batch, ms in spent.items()})


@dataclass(frozen=True, eq=False)
class Prices:
    """Seconds of rounds whose requests may verify different numbers of drafts:

        base(B) + (draft + dear * B) * s + verify(n)

    with B requests, s drafted steps and n verified tokens; n = B * (s + 1) in every measured round. ``verify`` is
    linear between knots and never falls. ``dear``, the cost of a drafted step per request, cannot be derived from these
    rounds, because B * s = n - B: it is measured separately, or assumed zero. Beyond the measured batches and tokens
    the model continues as over their last two intervals.
    """

    batches: tuple[int, ...]
    base: FloatArray
    """[batches] seconds that a batch size itself costs."""
    draft: tuple[float, float]
    """Seconds of a drafted step: a constant, and per request."""
    verify: FloatArray
    """[KNOTS] seconds of verifying that many tokens."""
    worst_share: float
    """Largest |fitted - measured| of the profile's rounds that drafted, as a share of the measured time."""
    plain: FloatArray
    """[batches] measured seconds of a round without drafts."""
    extra: Extra | None = None

    def seconds(self, batch: int, steps: int, tokens: int) -> float:
        """Return the seconds of a round of *batch* requests that drafts *steps* and verifies *tokens* in total."""
        own = _line(batch, self.batches, self.base) + (self.draft[0] + self.draft[1] * batch) * steps
        return own + _line(tokens, KNOTS, self.verify)

    def ragged(self, batch: int, steps: int, tokens: int) -> float:
        """Return the same if requests verify different numbers of drafts, which adds packing."""
        packing = self.extra.packing if self.extra else {batch: 0.0}
        return self.seconds(batch, steps, tokens) + float(np.interp(batch, [*packing], [*packing.values()]))

    def rectangle(self, batch: int, steps: int) -> float:
        """Return the seconds of a round that verifies all; at zero steps as measured, beyond the profile as modeled."""
        if steps:
            return self.seconds(batch, steps, batch * (steps + 1))
        most = self.batches[-1]
        beyond = self.seconds(batch, 0, batch) - self.seconds(most, 0, most) if batch > most else 0.0
        return float(np.interp(batch, self.batches, self.plain)) + beyond

    def by_place(self, batch: int) -> dict[Place, float]:
        """Return the seconds of a round by steps and budget."""
        plain = {(steps, steps): self.rectangle(batch, steps) for steps in LADDER}
        pairs = {
            (steps, budget): self.ragged(batch, steps, batch * (budget + 1))
            for steps in LADDER
            for budget in LADDER
            if 0 < budget < steps
        }
        return plain | pairs


def fit(cells: Mapping[tuple[int, int], float], extra: Extra | None = None) -> Prices:
    """Return the model of *cells*, seconds by (batch, steps), by least squares with no part negative."""
    dear = extra.drafted if extra else 0.0
    batches = tuple(sorted({batch for batch, _ in cells}))
    drafting = [(batch, steps) for batch, steps in sorted(cells) if steps]
    rows = []
    for batch, steps in drafting:
        own = [float(batch == other) for other in batches]
        reached = [min(max((batch * (steps + 1) - low) / (high - low), 0.0), 1.0) for low, high in pairwise(KNOTS)]
        rows.append([*own, float(steps), *reached])
    measured = np.array([cells[cell] for cell in drafting])
    drafted = np.array([dear * batch * steps for batch, steps in drafting])
    # Each row is weighted by its own time, so that the long rounds of large batches do not dominate.
    found, _ = nnls(np.array(rows) / measured[:, None], (measured - drafted) / measured)
    several = len(batches)
    verify = np.concatenate([[0.0], np.cumsum(found[several + 1 :])])
    error = np.abs(np.array(rows) @ found + drafted - measured) / measured
    plain = np.array([cells[batch, 0] for batch in batches])
    return Prices(batches, found[:several], (float(found[several]), dear), verify, float(error.max()), plain, extra)


def _line(at: float, xs: tuple[int, ...], ys: FloatArray) -> float:
    """Return the line through (xs, ys) at *at*: flat below, and above as over the last two intervals."""
    slope = (ys[-1] - ys[-3]) / (xs[-1] - xs[-3])
    return float(np.interp(at, xs, ys) + max(at - xs[-1], 0.0) * slope)


def prices() -> dict[str, Prices]:
    """Return the model of each shipped profile with measurements of drafts and packing for its shape."""
    loaded = dict(load_cost(str(path)) for path in sorted(shipped_config("profiles").glob("*.json")))
    extras = {path.stem: read_extra(path) for path in sorted(GPU_COST.glob("*.json"))}
    return {
        name: fit(cost.cells(), extra)
        for shape, extra in extras.items()
        for name, cost in loaded.items()
        if name.startswith(shape)
    }


# -- the loop -------------------------------------------------------------------------------------------------------


class Slots:
    """The position of each request of a full batch, as rows of the trace. The next one replaces a finished one."""

    def __init__(self, trace: Trace, batch: int, seed: int, parts: int = 1) -> None:
        """Requests come in random order; with several *parts*, those of each part of the trace in turn."""
        self._draw = np.random.default_rng(seed)
        self._starts, self._length = trace.starts, trace.length.astype(np.int64)
        self._parts = np.array_split(np.arange(len(self._length)), parts)
        self._queue: list[int] = []
        self._turns = 0
        first = [self._next() for _ in range(batch)]
        self.requests = np.array(first)
        """The request that each slot holds."""
        self.rows = self._starts[first]
        self._ends = self.rows + self._length[first]

    def advance(self, tokens: IntArray) -> int:
        """Advance each request by its *tokens*; return how many of them its text had left."""
        left = self._ends - self.rows
        self.rows = self.rows + tokens
        for slot in np.nonzero(tokens >= left)[0]:
            request = self.requests[slot] = self._next()
            self.rows[slot] = self._starts[request]
            self._ends[slot] = self._starts[request] + self._length[request]
        return int(np.minimum(tokens, left).sum())

    def _next(self) -> int:
        if not self._queue:
            self._queue = self._draw.permutation(self._parts[self._turns % len(self._parts)]).tolist()
            self._turns += 1
        return self._queue.pop()


class Held:
    """Always the same steps and budget."""

    cost_sync_due = False

    def __init__(self, steps: int, budget: int | None = None) -> None:
        self._steps, self.budget = steps, budget

    def get_steps_for_batch(self, batch_size: int) -> int:
        """Return the steps."""
        return self._steps

    def observe(self, seen: RoundObservation) -> None:
        """Learn nothing."""


def throughput(known: Prices | None, budgets: bool) -> ThroughputPolicy:
    """Return the policy as a server starts it, with the rounds of *known*, if any, as its profile."""
    profile = None
    if known is not None:
        cells = [ProfileCell(b, steps, known.rectangle(b, steps)) for b in known.batches for steps in LADDER]
        profile = CostProfile(KEY, ordered(cells), "modelled")
    policy = ThroughputPolicy(LAUNCH_STEPS, ThroughputOptions(candidate_steps=LADDER, verify_budget=budgets), profile)
    policy.allow_budgets(True)
    return policy


@dataclass
class Outcome:
    """The result of a run."""

    tokens: int = 0
    rounds: Counter[Place] = field(default_factory=Counter)

    def rate(self, seconds: Mapping[Place, float]) -> float:
        """Return tokens per second if rounds take *seconds*."""
        return self.tokens / sum(count * seconds[place] for place, count in self.rounds.items())


def run(
    policy: Any, trace: Trace, batch: int, tokens: int, seconds: Mapping[Place, float], seed: int = 0, parts: int = 1
) -> Outcome:
    """Let *policy* serve until *tokens* were generated; rounds take *seconds* by place."""
    slots, found, loop = Slots(trace, batch, seed, parts), Outcome(), _Loop(trace, batch, seed)
    while found.tokens < tokens:
        steps = policy.get_steps_for_batch(batch)
        place = steps, policy.budget or steps
        loop.settle(policy)
        right = loop.play(slots, place, seconds[place])
        found.tokens += slots.advance(right + 1)
        found.rounds[place] += 1
    return found


class _Loop:
    """The current round, and how its result reaches the policy.

    Rounds that a server looks at report what smaller budgets would have kept; unverified drafts are drawn by their
    chances, as on the server.
    """

    def __init__(self, trace: Trace, batch: int, seed: int) -> None:
        self._draw = np.random.default_rng(seed + 1000)
        self._accepted = trace.accepted.astype(np.int64)
        self._chances = np.minimum(trace.probabilities().astype(float), SURE)
        self._noise = clock_factors(4096, self._draw)
        self._batch, self._now, self._round = batch, 0.0, 0
        self._clock = RoundClock(lambda: self._now)
        self._flying: tuple[RoundObservation, float] | None = None
        self._calibration = Calibration()

    def play(self, slots: Slots, place: Place, seconds: float) -> IntArray:
        """Start a round that takes *seconds*; return what each request accepts."""
        steps, budget = place
        self._round += 1
        chances = self._chances[slots.rows, :steps]
        right = whole = np.minimum(self._accepted[slots.rows], steps)
        seen = RoundObservation(steps, [], self._batch, requests=slots.requests.tolist())
        verified = np.full(self._batch, steps)
        if budget < steps:
            verified = kept(chances, [budget])[budget]
            right = np.minimum(whole, verified)
            whole = self._completed(chances, verified, right)
            seen.budget, seen.verified, seen.completed = budget, verified.tolist(), whole.tolist()
        seen.num_correct_drafts_per_req = right.tolist()
        looked = looked_steps(self._round, self._batch, steps, seen.budget, LADDER)
        if looked:
            seen.evidence = _evidence(chances[:, :looked], whole, budgets_seen(LADDER, looked, seen.budget))
            self._calibrate(chances, right, verified)
        self._flying = seen, seconds * self._noise[self._round % 4096]
        return right

    def settle(self, policy: Any) -> None:
        """Deliver the previous round's result."""
        if self._flying is not None:
            seen, seconds = self._flying
            self._now += seconds
            seen.seconds = self._clock.read(seen.steps, self._batch, seen.budget)
            policy.observe(seen)
            if policy.cost_sync_due:
                hand_over_cost(policy)

    def _completed(self, chances: FloatArray, verified: IntArray, right: IntArray) -> IntArray:
        coins = self._draw.random(chances.shape) < chances**self._calibration.exponent
        through = np.cumprod(coins | (np.arange(chances.shape[1]) < verified[:, None]), axis=1).sum(axis=1)
        return np.where(right < verified, right, through)

    def _calibrate(self, chances: FloatArray, right: IntArray, verified: IntArray) -> None:
        at = np.arange(chances.shape[1])
        tried = at < np.minimum(verified, right + 1)[:, None]
        bins = np.minimum((chances * BINS).astype(int), BINS - 1)[tried]
        hit = (at < right[:, None])[tried]
        self._calibration.add(
            np.bincount(bins, minlength=BINS).tolist(),
            np.bincount(bins, np.round(chances[tried] * UNITS), minlength=BINS).astype(int).tolist(),
            np.bincount(bins[hit], minlength=BINS).tolist(),
        )


def kept(chances: FloatArray, budgets: Sequence[int]) -> dict[int, IntArray]:
    """Return by budget how many drafts of each chain are among the likeliest of *chances* [requests, steps]."""
    requests, steps = chances.shape
    order = np.argsort(-np.cumprod(chances, axis=1), axis=None, kind="stable") // steps
    return {b: np.bincount(order[: requests * b], minlength=requests) for b in budgets}


def _evidence(chances: FloatArray, whole: IntArray, budgets: Sequence[int]) -> BudgetEvidence:
    steps = chances.shape[1]
    seen = np.minimum(whole, steps)
    return BudgetEvidence(
        steps,
        int(seen.sum()),
        {b: int(np.minimum(seen, one).sum()) for b, one in kept(chances, budgets).items()},
        {b: int(np.minimum(seen, b).sum()) for b in budgets},
    )


# -- cells ----------------------------------------------------------------------------------------------------------


def scenes() -> dict[str, tuple[Trace, int]]:
    """Return the traces by name, each with the number of its parts that are served in turn."""
    found: dict[str, tuple[Trace, int]] = {}
    for path in sorted((FOLDER / "traces").glob("smollm2-*.npz")):
        trace = read(path)
        found[path.stem] = trace, 1
        if trace.loop_start.sum() < (1.0 - REPEATED) * trace.length.sum():
            found[f"{path.stem}-without-repetitions"] = trace.without_repetitions(), 1
    greedy, sampled = found["smollm2-greedy-without-repetitions"][0], found["smollm2-sampled"][0]
    arrays = ("length", "loop_start", "accepted", "confidence")
    both = {name: np.concatenate([getattr(greedy, name), getattr(sampled, name)]) for name in arrays}
    return {**found, IN_TURN: (replace(greedy, category=greedy.category + sampled.category, **both), 2)}


def cells(trace: Trace, parts: int, batch: int, profiles: Mapping[str, Prices]) -> Iterator[dict[str, Any]]:
    """Yield each profile's result at *batch*, as JSON builtins."""
    tokens = TOKENS_A_REQUEST * batch
    free = dict.fromkeys(((s, b) for s in LADDER for b in LADDER), 0.0)
    uniform = {
        steps: [run(Held(steps), trace, batch, tokens, free, seed, parts) for seed in SEEDS] for steps in LADDER[1:]
    }
    for name, known in profiles.items():
        seconds = known.by_place(batch)
        rates = {steps: [one.rate(seconds) for one in runs] for steps, runs in uniform.items()}
        rates[0] = [batch / seconds[0, 0]] * len(SEEDS)
        best = max(rates, key=lambda steps: fmean(rates[steps]))
        cell: dict[str, Any] = {"profile": name, "batch": batch, "measured": batch <= known.batches[-1], "best": best}
        for start, profiled in STARTS.items():
            without, with_budgets = (
                [
                    run(throughput(known if profiled else None, budgets), trace, batch, tokens, seconds, seed, parts)
                    for seed in SEEDS
                ]
                for budgets in (False, True)
            )
            cell[start] = _compared(without, with_budgets, seconds, rates[best])
        yield cell


def _compared(
    without: Sequence[Outcome], with_budgets: Sequence[Outcome], seconds: Mapping[Place, float], single: Sequence[float]
) -> dict[str, Any]:
    plain, chosen = ([one.rate(seconds) for one in runs] for runs in (without, with_budgets))
    rounds = sum((one.rounds for one in with_budgets), start=Counter[Place]())

    def mean(rates: Sequence[float], others: Sequence[float]) -> float:
        return fmean(rate / other for rate, other in zip(rates, others, strict=True))

    return {
        "rectangles": mean(plain, single),
        "budgets": mean(chosen, single),
        "ratio": mean(chosen, plain),
        "worst": min(rate / other for rate, other in zip(chosen, plain, strict=True)),
        "verified": sum(b * count for (_, b), count in rounds.items()) / rounds.total(),
        "places": [[*place, count] for place, count in rounds.most_common(3)],
    }


def main(argv: Sequence[str]) -> int:
    """Play everything and write one JSON file."""
    given = parser().parse_args(argv)
    profiles = prices()
    note = (
        "Acceptance and confidence are replayed from a trace; rounds without a budget were measured on a GPU, those "
        "with one are modelled from them and from measured drafts and packing."
    )
    fits = {name: one.worst_share for name, one in profiles.items()}
    report = Report(given.output, "verify_budget", argv, note=note, worst_error_of_the_fit=fits, cells=[])
    for name, (trace, parts) in scenes().items():
        for batch in given.batches:
            report.content["cells"] += [{"trace": name, **cell} for cell in cells(trace, parts, batch, profiles)]
            report.write()
            report.say(f"{name}, batch {batch}")
    return 0


def parser() -> argparse.ArgumentParser:
    made = command_parser("verify_budget", __doc__)
    made.add_argument("--batches", type=ints, default=BATCHES, metavar="N,N,...")
    made.add_argument("--output", type=Path, default=FOLDER / "results" / "verify_budget" / "policy" / "policy.json")
    return made


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
