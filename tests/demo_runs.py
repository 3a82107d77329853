"""Demo results with made-up measurements, for the tests of tables and reports."""

from __future__ import annotations

import io
from collections.abc import Sequence

from rich.console import RenderableType

from sglang_adaptive.lab.demo.results import Contender, Phase, PhaseResult, Run
from sglang_adaptive.lab.demo.terminal import console_of

PLAIN = Contender("no speculation", "none")
STATIC = {depth: Contender(f"static {depth}", "ema", depth) for depth in (1, 3, 7)}
EMA = Contender("EMA", "ema", adaptive=True)
TIERS = (1, 3, 7)
START = 1_700_000_000.0


def phase(index: int, family: str, concurrency: int) -> Phase:
    return Phase(f"{index}-{family}-x{concurrency}", family, concurrency, ("one", "two"), 10)


def result(
    of: Phase,
    seconds: float,
    rounds: dict[int, int] | None = None,
    first_steps: int | None = None,
    switches: Sequence[tuple[float, int, int]] = (),
) -> PhaseResult:
    """Return a phase of two requests that generated 0, 1, 2, ...; *switches* are (seconds into the phase, from, to)."""
    return PhaseResult(
        phase=of, begin=START, seconds=seconds, outputs=(tuple(range(of.max_new_tokens)),) * len(of.prompts),
        verify_rounds=sum((rounds or {}).values()), rounds_by_depth=rounds or {}, first_steps=first_steps,
        switches=tuple((START + at, after) for at, _, after in switches),
    )  # fmt: skip


def plain_run() -> Run:
    """20 tokens in each of six phases, 2 s each: 10 tokens/s."""
    return Run(PLAIN, (), tuple(result(p, 2.0) for p in six_phases()))


def static_run(depth: int, seconds: float) -> Run:
    """The same with the depth held, each phase taking *seconds*."""
    return Run(STATIC[depth], TIERS, tuple(result(p, seconds, {depth: 8}, depth) for p in six_phases()))


def ema_run(seconds: float = 1.0) -> Run:
    """Drop from 7 to 1 in the middle of each hard phase, and rise in the middle of each easy phase after it."""
    moves = {"hard": [(seconds / 2, 7, 1)], "easy": [(seconds / 2, 1, 7)]}
    phases = []
    for index, of in enumerate(six_phases()):
        steady = index == 0
        rounds = {7: 6} if steady else {1: 6, 7: 2} if of.family == "hard" else {1: 2, 7: 6}
        first_steps = 7 if steady or of.family == "hard" else 1
        phases.append(result(of, seconds, rounds, first_steps, [] if steady or index == 3 else moves[of.family]))
    return Run(EMA, TIERS, tuple(phases))


def six_phases() -> list[Phase]:
    order = [(family, concurrency) for concurrency in (1, 4) for family in ("easy", "hard", "easy")]
    return [phase(index, family, concurrency) for index, (family, concurrency) in enumerate(order, 1)]


def drawn(*parts: RenderableType, columns: int = 80) -> list[str]:
    """Return the lines that *parts* take where standard output is not a terminal."""
    stream = io.StringIO()
    console = console_of(stream)
    console.width = columns
    for part in parts:
        console.print(part)
    return stream.getvalue().splitlines()
