"""Which steps to run, and why: those with the highest expected rate, with a bound on what speculation may lose.

Against zero steps, speculation may cost 1% of the throughput over any 500 rounds. Losses are counted in rounds at zero
steps: a round that takes ``t`` and yields ``m`` tokens per request loses ``t / t0 - m`` rounds.
"""

from __future__ import annotations

from typing import Any

from sglang_adaptive.policy.choice import Choice, Source
from sglang_adaptive.policy.throughput.acceptance import AcceptanceEstimator
from sglang_adaptive.policy.throughput.cost import CostModel
from sglang_adaptive.policy.throughput.rows import RoundTimeRow

WINDOW_ROUNDS = 500
"""Rounds of the bound; losses decay over the same number of rounds."""
ALLOWANCE = 3.5
"""Rounds that may be lost in a window: 1% of it, minus what the rounds in flight lose."""
DEVIATIONS_PER_LOST = 0.5
"""Standard deviations by which speculation must beat zero steps, per round lost. A fixed gain would disable speculation
for good: with one request most of a loss is bad luck. With 0.25, a draft that fails at once costs 1.1% of 500 rounds at
batch 1 (simulated)."""
MARGIN = 0.01
"""Minimum gain over zero steps that speculation must promise."""


class StepChoice:
    """Decides before every round that is not a probe."""

    def __init__(self, live: int) -> None:
        self.live = live
        """The chosen steps; a probe does not change them."""
        self.lost = 0.0
        """Rounds recently lost against zero steps and not regained, without probes out of zero steps."""

    def decide(self, row: RoundTimeRow, acceptance: AcceptanceEstimator) -> None:
        """Choose the live steps; of equally fast ones, those that run already."""
        live, slower = self.live, acceptance.slower(self.live)
        times = {steps: seconds * slower[rung] for rung, steps, seconds in row.rungs}
        best = min(times, key=lambda steps: (times[steps], steps != live), default=live)
        if best and row.zero is not None:
            gain = times[0] / times[best] - 1.0
            unsure = acceptance.ratio_deviation(0, best) if self.lost else 0.0
            if gain < max(MARGIN, DEVIATIONS_PER_LOST * self.lost * unsure):
                best = 0
        if best == 0 and live and self._tolerates_loss(row, acceptance):
            best = min((steps for steps in times if steps), key=times.__getitem__)
        self.live = best

    def book(self, loss: float) -> None:
        """Add a round's loss against zero steps; negative for a gain."""
        self.lost = max(0.0, self.lost * (1.0 - 1.0 / WINDOW_ROUNDS) + loss)

    def _tolerates_loss(self, row: RoundTimeRow, acceptance: AcceptanceEstimator) -> bool:
        """Whether usual text pays and little is lost yet: hard text may end soon, which zero steps notice late."""
        if row.zero is None or self.lost >= ALLOWANCE:
            return False
        usual = acceptance.usual_tokens
        return any(usual[steps] * row.zero > (1.0 + MARGIN) * seconds for _, steps, seconds in row.rungs if steps)


def rates(
    batch_size: int, running: int, row: RoundTimeRow, acceptance: AcceptanceEstimator, cost: CostModel
) -> list[dict[str, Any]]:
    """Return as builtins the expected rate of each number of steps at *batch_size*, also over that of *running*."""
    tokens, slower = acceptance.tokens, acceptance.slower(running)
    return [
        {
            "steps": steps, "tokens_per_second": batch_size * tokens[steps] / seconds,
            "tokens_per_round": batch_size * tokens[steps],
            "times_running": row.seconds.get(running, seconds) / (seconds * slower[rung]),
            "seconds": seconds, "deviation": row.deviation[steps], "source": cost.source(row.padded, steps),
            "allowed": steps in row.allowed,
        }
        for rung, (steps, seconds) in enumerate(row.seconds.items())
    ]  # fmt: skip


def why(ran: Choice, live: int, rounds: int, voted: bool, promised: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the reason for what *ran*, from the result of ``rates``: a code, its figures, and words.

    *live* are the steps without a probe, *voted* says whether several ranks agree on the steps.
    """
    steps = ran.steps
    if ran.source is Source.LOOKUP:
        words = f"{steps} drafts looked up in each request's own text, which copies itself, promise the highest speed"
        return {"code": "lookup", "rival_steps": None, "rival_gain": 0.0, "words": words}
    gains = {rate["steps"]: rate["times_running"] - 1.0 for rate in promised if rate["allowed"]}
    best = max(gains, key=lambda s: (gains[s], -s))
    rival = max((s for s in gains if s != steps), key=lambda s: (gains[s], -s), default=None)
    gain = gains[rival] if rival is not None and steps in gains else 0.0
    running = _steps(steps)
    if rounds == 0:
        code, words = "start", f"{running}: no round has been verified yet"
    elif ran.probe:
        code, words = "probe", f"{running} for a few rounds, as a probe; otherwise {live}"
    elif voted and steps != best:
        code, words = "vote", f"{running}: what all ranks agreed on"
    elif steps == best:
        code, words = "best", f"{running} {_verb('promise', steps)} the highest speed for this text"
    elif steps == 0:
        code, words = "guard", f"no speculation: {_steps(best)} {_verb('do', best)} not promise enough more to risk it"
    elif best == 0:
        code, words = "hold", f"{running}: usual text pays, and little is lost yet"
    else:
        code, words = "stale", f"{running}: chosen before the latest results"
    if rival is not None:
        words += f" ({_steps(rival)}: {100.0 * gain:+.1f}%)"
    return {"code": code, "rival_steps": rival, "rival_gain": gain, "words": words}


def _steps(count: int) -> str:
    return "1 step" if count == 1 else f"{count} steps"


def _verb(plural: str, count: int) -> str:
    """Return the verb form for this number of steps."""
    return {"do": "does"}.get(plural, f"{plural}s") if count == 1 else plural
