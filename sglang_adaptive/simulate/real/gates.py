"""What the throughput policy is to reach on replayed text, and whether it did."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from sglang_adaptive.simulate.profile_file import SHIPPED
from sglang_adaptive.simulate.real.cell import Cell
from sglang_adaptive.simulate.real.recordings import CUT
from sglang_adaptive.simulate.real.scenes import MIXED, PHASES

JUDGED = "throughput"
"""The policy that the gates are for."""
TINY = "tiny"
"""How the name of a recording begins whose kinds of text differ very much."""
OTHER_SCENES = ("drift", "near-copies")


@dataclass(frozen=True)
class Gate:
    """A figure beside its bound; a figure without a bound is only told."""

    title: str
    measured: float
    bound: float | None = None
    ceiling: bool = False

    @property
    def met(self) -> bool:
        """Whether the figure is within the bound."""
        if self.bound is None:
            return True
        return self.measured <= self.bound if self.ceiling else self.measured >= self.bound


def gates(cells: Sequence[Cell]) -> list[Gate]:
    """Return every gate whose cells were played; of several cells a figure is the worst, unless it says mean."""
    closed = [cell for cell in cells if cell.load.isdigit() and JUDGED in cell.scores]
    alike = sorted({cell.texts for cell in closed if not cell.texts.startswith(TINY)})
    tiny = [cell for cell in closed if cell.texts.startswith(TINY) and not cell.texts.endswith(CUT)]
    found = [gate for texts in alike for gate in _alike(texts, [cell for cell in closed if cell.texts == texts])]
    return [*found, *_tiny(tiny), *_against_ema(closed), *_arrivals(cells)]


def _alike(texts: str, cells: list[Cell]) -> Iterator[Gate]:
    """Yield the gates of texts whose kinds do not differ much: Spec-Bench's."""
    asked = [cell for cell in cells if cell.scene not in (PHASES, *OTHER_SCENES)]
    single = [_over_single(cell) for cell in asked]
    title = f"{texts}: over the best single depth"
    if single:
        yield Gate(f"{title}, categories and {MIXED}, mean", fmean(single), 1.005)
        yield Gate(f"{title}, categories and {MIXED}, worst", min(single), 0.985)
    yield from _worst(f"{title}, {MIXED}, batch 1", [c for c in asked if c.scene == MIXED and c.load == "1"], 1.015)
    yield from _worst(f"{title}, {PHASES}", [cell for cell in cells if cell.scene == PHASES], 0.995)
    for scene in OTHER_SCENES:
        yield from _worst(f"{title}, {scene}", [cell for cell in cells if cell.scene == scene], None)
    yield from _slowest(texts, cells, 1.02)


def _tiny(cells: list[Cell]) -> Iterator[Gate]:
    """Yield the gates of very different kinds beside each other."""
    for batch in ("16", "64"):
        mixed = [cell for cell in cells if cell.scene == MIXED and cell.load == batch]
        yield from _worst(f"very different kinds, {MIXED}, batch {batch}", mixed, 0.99)
    own = [cell for cell in cells if cell.scene == PHASES and cell.profile == SHIPPED]
    yield from _worst(f"very different kinds, {PHASES}, {SHIPPED}", own, 1.06)
    for scene in (PHASES, *OTHER_SCENES):
        yield from _worst(f"very different kinds, {scene}", [cell for cell in cells if cell.scene == scene], None)
    yield from _slowest("very different kinds", cells, 1.02)


def _against_ema(cells: list[Cell]) -> Iterator[Gate]:
    for name, title in (("ema", "built-in slots"), ("ema-all", "all depths")):
        ratios = [_over_single(cell) / cell.scores[name].over_single for cell in cells if name in cell.scores]
        if ratios:
            yield Gate(f"over SGLang's EMA, {title}, worst cell", min(ratios), 1.0)


def _arrivals(cells: Sequence[Cell]) -> Iterator[Gate]:
    for load in sorted({cell.load for cell in cells if not cell.load.isdigit()}):
        yield from _worst(f"Poisson {load}", [c for c in cells if c.load == load and JUDGED in c.scores], None)


def _worst(title: str, cells: Sequence[Cell], bound: float | None) -> Iterator[Gate]:
    if cells:
        yield Gate(title, min(_over_single(cell) for cell in cells), bound)


def _slowest(texts: str, cells: Sequence[Cell], bound: float) -> Iterator[Gate]:
    figures = [score.slowest for cell in cells if (score := cell.scores[JUDGED]).slowest is not None]
    if figures:
        title = f"{texts}: seconds a token of the slowest tenth, over those at the best single depth"
        yield Gate(f"{title}, mean", fmean(figures))
        yield Gate(f"{title}, worst", max(figures), bound, ceiling=True)


def _over_single(cell: Cell) -> float:
    return cell.scores[JUDGED].over_single
