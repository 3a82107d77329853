"""The recorded texts that a run plays: those that are shipped, or an operator's own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sglang_adaptive.lab.simulate.errors import SimulationError
from sglang_adaptive.lab.simulate.real.texts import Texts
from sglang_adaptive.lab.traces import TraceError, read

REPEATED = 0.02
"""Share of the positions from which on exact repetitions are worth a second play without them."""
_PACKAGE = Path(__file__).resolve().parents[3]
CUT = ", repetitions cut"
"""Ends the name of a recording that is played a second time, each request up to its first exact repetition."""


def shipped() -> list[Path]:
    """Return the recordings of a checkout; a wheel has none."""
    return sorted((_PACKAGE.parent / "benchmarks" / "traces").glob("*.npz"))


def load_texts(files: Sequence[str]) -> dict[str, Texts]:
    """Return the texts of *files* by name, of the shipped recordings without files.

    A recording with many exact repetitions is played twice: whole, and with the repetitions cut.

    Raises:
        SimulationError: a file is no recording, two have one name, or none is shipped.
    """
    paths = [Path(file) for file in files] or shipped()
    if not paths:
        raise SimulationError("--texts: no recording comes with this installation; expected the file of one")
    found: dict[str, Texts] = {}
    for path in paths:
        try:
            trace = read(path)
        except TraceError as error:
            raise SimulationError(f"--texts {error}") from error
        if path.stem in found:
            raise SimulationError(f"--texts {path}: a second recording called {path.stem}; expected other names")
        found[path.stem] = Texts.of(trace)
        if trace.loop_start.sum() < (1.0 - REPEATED) * trace.length.sum():
            found[path.stem + CUT] = Texts.of(trace.without_repetitions())
    return found
