"""Targets for the throughput policy on recorded text, whether it met them, and what hindsight could reach."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from sglang_adaptive.lab.simulate import text
from sglang_adaptive.lab.simulate.cost import SHIPPED
from sglang_adaptive.lab.simulate.real.cell import Cell, Score
from sglang_adaptive.lab.simulate.real.scenes import MIXED, PHASES
from sglang_adaptive.lab.simulate.real.texts import CUT
from sglang_adaptive.lab.simulate.report import JUDGED

SEEING = ("knows-kinds", "knows-contexts")
"""Oracles that know no more about a request than a server could: its category or its last rounds, and what each depth
yields there on average."""
TINY = "tiny"
"""Prefix of the names of recordings whose kinds of text differ very much."""
OTHER_SCENES = ("drift", "near-copies")

Figure = Callable[[Score], float | None]
Summary = Callable[[Sequence[float]], float]


@dataclass(frozen=True)
class Gate:
    """A figure and its bound; a figure without a bound is only reported."""

    title: str
    measured: float
    bound: float | None = None
    ceiling: bool = False
    hindsight: float | None = None
    """The same figure of the best oracle that knows no more than a server could; None if none was played."""

    @property
    def met(self) -> bool:
        """Whether the figure is within the bound."""
        if self.bound is None:
            return True
        return self.measured <= self.bound if self.ceiling else self.measured >= self.bound

    def as_json(self) -> dict[str, Any]:
        """Return the gate as JSON builtins; figures are rounded to 5 digits."""
        found: dict[str, Any] = {"figure": self.title, "measured": round(float(self.measured), 5), "bound": self.bound}
        if self.hindsight is not None:
            found["hindsight"] = round(float(self.hindsight), 5)
        if self.bound is not None:
            found |= {"at": "most" if self.ceiling else "least", "met": bool(self.met)}
        return found


def told(gates: Sequence[Mapping[str, Any]]) -> str:
    """Return what is printed of *gates* as JSON builtins: one row each, after how many were met."""
    bounded = [gate for gate in gates if gate["bound"] is not None]
    met = f"{sum(gate['met'] for gate in bounded)} of {len(bounded)} gates met." if bounded else "No gate was judged."
    rows = []
    for gate in gates:
        bound = "-" if gate["bound"] is None else f"at {gate['at']} {gate['bound']:g}"
        hindsight = f"{gate['hindsight']:g}" if "hindsight" in gate else "-"
        rows.append([gate["figure"], bound, f"{gate['measured']:g}", hindsight, _verdict(gate)])
    return f"{met}\n\n{text.table(['gate', 'bound', 'measured', 'in hindsight', ''], rows)}"


def _verdict(gate: Mapping[str, Any]) -> str:
    if gate["bound"] is None:
        return "-"
    if gate["met"]:
        return "met"
    best, bound = gate.get("hindsight", gate["bound"]), gate["bound"]
    beyond = best < bound if gate["at"] == "least" else best > bound
    return "MISSED, in hindsight too" if beyond else "MISSED"


def gates(cells: Sequence[Cell]) -> list[Gate]:
    """Return every gate whose cells were played; a figure of several cells is the worst unless it says mean."""
    closed = [cell for cell in cells if cell.load.isdigit() and JUDGED in cell.scores]
    alike = sorted({cell.texts for cell in closed if not cell.texts.startswith(TINY)})
    tiny = [cell for cell in closed if cell.texts.startswith(TINY) and not cell.texts.endswith(CUT)]
    found = [gate for texts in alike for gate in _alike(texts, [cell for cell in closed if cell.texts == texts])]
    return [*found, *_tiny(tiny), *_against_ema(closed), *_arrivals(cells)]


def _alike(texts: str, cells: list[Cell]) -> Iterator[Gate]:
    """Yield the gates of texts whose kinds differ little: Spec-Bench's."""
    asked = [cell for cell in cells if cell.scene not in (PHASES, *OTHER_SCENES)]
    title = f"{texts}: over the best single depth"
    yield from _gate(f"{title}, categories and {MIXED}, mean", asked, 1.005, of=fmean)
    yield from _gate(f"{title}, categories and {MIXED}, worst", asked, 0.985)
    yield from _gate(f"{title}, {MIXED}, batch 1", [c for c in asked if c.scene == MIXED and c.load == "1"], 1.015)
    yield from _gate(f"{title}, {PHASES}", [cell for cell in cells if cell.scene == PHASES], 0.995)
    for scene in OTHER_SCENES:
        yield from _gate(f"{title}, {scene}", [cell for cell in cells if cell.scene == scene])
    yield from _slowest(texts, cells, 1.02)


def _tiny(cells: list[Cell]) -> Iterator[Gate]:
    """Yield the gates of mixtures of very different kinds."""
    for batch in ("16", "64"):
        mixed = [cell for cell in cells if cell.scene == MIXED and cell.load == batch]
        yield from _gate(f"very different kinds, {MIXED}, batch {batch}", mixed, 0.99)
    own = [cell for cell in cells if cell.scene == PHASES and cell.profile == SHIPPED]
    yield from _gate(f"very different kinds, {PHASES}, {SHIPPED}", own, 1.06)
    for scene in (PHASES, *OTHER_SCENES):
        yield from _gate(f"very different kinds, {scene}", [cell for cell in cells if cell.scene == scene])
    yield from _slowest("very different kinds", cells, 1.02)


def _against_ema(cells: list[Cell]) -> Iterator[Gate]:
    for name, title in (("ema", "built-in slots"), ("ema-all", "all depths")):
        played = [cell.scores for cell in cells if name in cell.scores]
        ratios = [scores[JUDGED].over_single / scores[name].over_single for scores in played]
        if ratios:
            yield Gate(f"over SGLang's EMA, {title}, worst cell", min(ratios), 1.0)


def _arrivals(cells: Sequence[Cell]) -> Iterator[Gate]:
    for load in sorted({cell.load for cell in cells if not cell.load.isdigit()}):
        yield from _gate(f"Poisson {load}", [c for c in cells if c.load == load and JUDGED in c.scores])


def _slowest(texts: str, cells: list[Cell], bound: float) -> Iterator[Gate]:
    title = f"{texts}: seconds a token of the slowest tenth, over those at the best single depth"
    told = [cell for cell in cells if _slowest_tenth(cell.scores[JUDGED]) is not None]
    yield from _gate(f"{title}, mean", told, None, of=fmean, figure=_slowest_tenth, ceiling=True)
    yield from _gate(f"{title}, worst", told, bound, of=max, figure=_slowest_tenth, ceiling=True)


def _over_single(score: Score) -> float:
    return score.over_single


def _slowest_tenth(score: Score) -> float | None:
    return score.slowest


def _gate(
    title: str,
    cells: Sequence[Cell],
    bound: float | None = None,
    *,
    of: Summary = min,
    figure: Figure = _over_single,
    ceiling: bool = False,
) -> Iterator[Gate]:
    """Yield the gate of *cells*, if any, with the same figure of the oracles that played all of them."""

    def reached(name: str) -> float | None:
        figures = [figure(cell.scores[name]) for cell in cells if name in cell.scores]
        known = [each for each in figures if each is not None]
        return of(known) if known and len(figures) == len(cells) else None

    measured = reached(JUDGED)
    if measured is not None:
        oracles = [found for name in SEEING if (found := reached(name)) is not None]
        best = (min if ceiling else max)(oracles) if oracles else None
        yield Gate(title, measured, bound, ceiling, best)
