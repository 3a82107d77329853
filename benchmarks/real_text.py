"""Measure the throughput policy: on recorded text, on random suites, and its own cost.

    python -m benchmarks.real_text [--texts F]... [--rounds N] [--quick] [--no-oracles] [--json F]

Takes minutes on one CPU core. Every cell of recorded text runs on every shipped cost profile. All random suites run on
the default profile, and the one with a wrong profile also on the others. The last rows are wall time of this machine.
``--quick`` runs only recorded text, without the oracles.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import policy_overhead, text_gates
from benchmarks.text_gates import Gate
from sglang_adaptive.lab.simulate.contenders import Contender, chosen
from sglang_adaptive.lab.simulate.cost import SHIPPED, SimulationError
from sglang_adaptive.lab.simulate.real import suite as real
from sglang_adaptive.lab.simulate.real.cell import Cell, Score
from sglang_adaptive.lab.simulate.real.oracles import ORACLES
from sglang_adaptive.lab.simulate.real.texts import load_texts
from sglang_adaptive.lab.simulate.report import JUDGED, as_json, outcomes
from sglang_adaptive.lab.simulate.scenes import SUITES, Setting
from sglang_adaptive.lab.simulate.score import run_suite
from sglang_adaptive.lab.simulate.text import recorded

WRONG_PROFILE = "profile-15"
ROW = ("texts", "scene", "load", "profile", "best single", "best single over no speculation", "slowest", "switches")
"""A row's values before the contenders' shares; the last two are the throughput policy's, as in ``definition``."""
DECISIONS, DECISION_BATCH = 20_000, 64


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print every table, write all figures; return 1 if a gate is missed, 2 on bad input."""
    words = list(sys.argv[1:] if argv is None else argv)
    options = parser().parse_args(words)
    oracles = () if options.quick or options.no_oracles else ORACLES
    try:
        setting = real.Setting(load_texts(options.texts), real.load_costs(None), rounds=options.rounds)
        contenders, _ = real.pick(list(real.POLICIES), setting)
        cells = real.play(setting, contenders, oracles)
    except SimulationError as error:
        print(f"benchmarks.real_text: {error}", file=sys.stderr)
        return 2
    found = text_gates.gates(cells)
    if not options.quick:
        found += [*drawn(setting), *decision()]
    report = real.json_report(words, setting, options.texts, cells)
    report["provenance"]["command"] = " ".join(["python -m benchmarks.real_text", *words])
    report["gates"] = [gate.as_json() for gate in found]
    print(recorded("benchmarks.real_text", report), text_gates.told(report["gates"]), sep="\n\n")
    if options.json:
        short = report | {"columns": columns(cells), "cells": rows(cells)}
        options.json.write_text(as_json(short), encoding="utf-8")
    return int(not all(gate.met for gate in found))


def columns(cells: Sequence[Cell]) -> list[str]:
    """Return the names of the figures in a row of ``rows``."""
    return [*ROW, *(f"{name} over best single" for name in _contenders(cells))]


def rows(cells: Sequence[Cell]) -> list[list[Any]]:
    """Return one short row per cell, so that the file of a whole run stays small; null if nothing was played."""
    names = _contenders(cells)
    return [[*_row(cell), *(_figure(cell.scores.get(name), "over_single") for name in names)] for cell in cells]


def _row(cell: Cell) -> list[Any]:
    judged = cell.scores.get(JUDGED)
    off = cell.singles.get(0)
    gain = None if off is None else round(cell.singles[cell.best_single] / off, 4)
    own = [_figure(judged, "slowest"), _figure(judged, "switches", 0)]
    return [cell.texts, cell.scene, cell.load, cell.profile, cell.best_single, gain, *own]


def _figure(score: Score | None, name: str, digits: int = 4) -> float | None:
    value = None if score is None else getattr(score, name)
    return None if value is None else round(value, digits)


def _contenders(cells: Sequence[Cell]) -> list[str]:
    return list(dict.fromkeys(name for cell in cells for name in cell.scores))


def drawn(setting: real.Setting) -> list[Gate]:
    """Return whether the drawn suites meet their targets, and the worst trace under wrong profiles."""
    shipped = Setting(setting.costs[SHIPPED])
    judged = outcomes({name: run_suite(suite, shipped, _policy(shipped)) for name, suite in SUITES.items()})
    met = sum(target["met"] for target in judged)
    found = [Gate(f"drawn suites: targets met, of {len(judged)}", met, len(judged))]
    for name, cost in setting.costs.items():
        own = Setting(cost)
        worst = min(score.share for score in run_suite(SUITES[WRONG_PROFILE], own, _policy(own))[JUDGED])
        found.append(Gate(f"drawn suites: worst trace of {WRONG_PROFILE}, {name}", worst, 0.95))
    return found


def decision() -> list[Gate]:
    """Return the microseconds of both calls of a round."""
    rows = policy_overhead.draw(DECISION_BATCH)
    spent = sorted(policy_overhead.time_throughput(rows, DECISION_BATCH, DECISIONS)["throughput"])
    title = f"decision, batch {DECISION_BATCH}, both calls, us"
    return [
        Gate(f"{title}, median", statistics.median(spent) / 1e3, 20, ceiling=True),
        Gate(f"{title}, p99", spent[int(0.99 * len(spent))] / 1e3, 50, ceiling=True),
    ]


def _policy(setting: Setting) -> list[Contender]:
    return chosen([JUDGED], setting.ladder)[0]


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--texts", action="append", default=[], metavar="F", help="recording (default: the shipped ones)")
    made.add_argument("--rounds", type=int, default=real.DEFAULT_ROUNDS, help="rounds per cell (default: %(default)s)")
    made.add_argument("--quick", action="store_true", help="run only recorded text, without oracles")
    made.add_argument("--no-oracles", action="store_true", help="skip the oracles")
    made.add_argument("--json", type=Path, metavar="F")
    return made


if __name__ == "__main__":
    sys.exit(main())
