"""The real suite's report, as text and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any

from sglang_adaptive.lab.simulate.real.cell import Cell
from sglang_adaptive.lab.simulate.real.gates import Gate
from sglang_adaptive.lab.simulate.report import table

FORMAT = 1
DEFINITION = (
    "over_single = output tokens a second that requests see, over those at the best single depth of the same cell; "
    "switches = changes of steps an hour; slowest = mean seconds a token of the slowest tenth of the requests, over "
    "those at the best single depth. Round times are a profile's; acceptance is recorded."
)


def gates_table(gates: Sequence[Gate]) -> str:
    """Return figure, gate, measured, the best oracle's figure and the verdict, one a line."""
    rows = []
    for gate in gates:
        bound = "" if gate.bound is None else ("<= " if gate.ceiling else ">= ") + f"{gate.bound:g}"
        hindsight = "" if gate.hindsight is None else _short(gate.hindsight)
        rows.append([gate.title, bound, _short(gate.measured), hindsight, _verdict(gate)])
    return table(["figure", "gate", "measured", "in hindsight", ""], rows)


def _verdict(gate: Gate) -> str:
    if gate.bound is None:
        return ""
    return "met" if gate.met else "MISSED" if gate.within_reach else "MISSED, in hindsight too"


def _short(figure: float) -> str:
    return f"{figure:.3f}".rstrip("0").rstrip(".")


def text_report(cells: Sequence[Cell], gates: Sequence[Gate]) -> str:
    """Return a table of each recording, mean and worst over the profiles, and that of the gates."""
    parts = []
    for texts in dict.fromkeys(cell.texts for cell in cells):
        own = [cell for cell in cells if cell.texts == texts]
        profiles = len({cell.profile for cell in own})
        parts.append(
            f"{texts}: over the best single depth, mean / worst of {profiles} cost profile{'s'[: profiles > 1]}\n"
            + _table(own, "scene", lambda figures: f"{fmean(figures):.3f} / {min(figures):.3f}")
        )
    if gates:
        bounded = [gate for gate in gates if gate.bound is not None]
        met = sum(gate.met for gate in bounded)
        parts.append(f"Gates of the throughput policy: {met} of {len(bounded)} met\n{gates_table(gates)}")
    return "\n\n".join(parts)


def _table(cells: Sequence[Cell], first: str, shown: Callable[[list[float]], str]) -> str:
    names = list(dict.fromkeys(name for cell in cells for name in cell.scores))
    rows = []
    for load, scene in dict.fromkeys((cell.load, cell.scene) for cell in cells):
        own = [cell for cell in cells if (cell.load, cell.scene) == (load, scene)]
        where = f"batch {load}" if load.isdigit() else load
        best = sorted({cell.best_single for cell in own})
        figures = ([cell.scores[name].over_single for cell in own if name in cell.scores] for name in names)
        rows.append([f"{where}, {scene}", ", ".join(map(str, best)), *(shown(f) if f else "" for f in figures)])
    return table([first, "best single", *names], rows)


def json_report(cells: Sequence[Cell], gates: Sequence[Gate], source: Mapping[str, Any]) -> dict[str, Any]:
    """Return the whole report as JSON builtins; figures are rounded to 5 digits."""
    return {
        "format": FORMAT,
        "suite": "real",
        "provenance": dict(source),
        "definition": DEFINITION,
        "gates": [_gate(gate) for gate in gates],
        "cells": [_rounded(asdict(cell)) for cell in cells],
    }


def _gate(gate: Gate) -> dict[str, Any]:
    verdict = {} if gate.bound is None else {"at": "most" if gate.ceiling else "least", "met": bool(gate.met)}
    hindsight = {} if gate.hindsight is None else {"hindsight": round(float(gate.hindsight), 5)}
    told = {"figure": gate.title, "measured": round(float(gate.measured), 5), "bound": gate.bound}
    return {**told, **hindsight, **verdict}


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 5)
    return {str(key): _rounded(each) for key, each in value.items()} if isinstance(value, dict) else value
