"""``sglang-adaptive simulate --suite real``."""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sglang_adaptive.lab.simulate.contenders import Contender, chosen, fitting
from sglang_adaptive.lab.simulate.cost import RoundCost, SimulationError, load_cost
from sglang_adaptive.lab.simulate.ours import LOOKUPS
from sglang_adaptive.lab.simulate.real.cell import Cell
from sglang_adaptive.lab.simulate.real.gates import gates
from sglang_adaptive.lab.simulate.real.oracles import ORACLES
from sglang_adaptive.lab.simulate.real.report import json_report, text_report
from sglang_adaptive.lab.simulate.real.suite import DEFAULT_ROUNDS, Setting, play_all
from sglang_adaptive.lab.simulate.real.texts import load_texts, shipped
from sglang_adaptive.lab.simulate.report import about
from sglang_adaptive.policy.profile import shipped_config

NAME = "real"
POLICIES = ("throughput", "ema", "ema-all")
"""Policies that play where none is named; every fixed depth plays anyway."""


def run(options: argparse.Namespace, words: list[str]) -> tuple[str, dict[str, Any], bool]:
    """Play the suite; return the report as text and as JSON builtins, and whether every gate is met."""
    if "oracle" in options.policy:
        raise SimulationError(f"--policy oracle: of drawn acceptance; --suite {NAME} has {', '.join(ORACLES)}")
    texts, costs = load_texts(options.texts), load_costs(options.profile)
    setting = Setting(texts, costs, rounds=options.rounds or DEFAULT_ROUNDS, seed=options.seed)
    names = [name for name in options.policy if name not in ORACLES]
    contenders, left_out = pick(names or ([] if options.policy else list(POLICIES)), setting)
    oracles = [name for name in ORACLES if name in options.policy or not options.policy]
    cells = play(setting, contenders, oracles, not options.no_progress)
    judged = gates(cells)
    source = provenance(words, setting, options.texts) | ({"left_out": left_out} if left_out else {})
    text = "\n\n".join([text_report(cells, judged), *left_out])
    return text, json_report(cells, judged, source), all(gate.met for gate in judged)


def load_costs(path: str | None) -> dict[str, RoundCost]:
    """Return the cost profile in *path* by its name, every shipped one without a path."""
    paths = [path] if path else sorted(map(str, shipped_config("profiles").glob("*.json")))
    return dict(load_cost(one) for one in paths)


def pick(names: list[str], setting: Setting) -> tuple[list[Contender], list[str]]:
    """Return the contenders called *names* that can run on every profile, and a sentence on each other one."""
    in_all = set.intersection(*(set(cost.steps) for cost in setting.costs.values()))
    if LOOKUPS in names and not all(texts.match for texts in setting.texts.values()):
        lacking = next(name for name, texts in setting.texts.items() if not texts.match)
        raise SimulationError(f"--policy {LOOKUPS}: {lacking} was recorded without them; expected other --texts")
    return fitting(chosen(names, tuple(setting.steps)), in_all) if names else ([], [])


def play(setting: Setting, contenders: Sequence[Contender], oracles: Sequence[str], progress: bool) -> list[Cell]:
    """Play every cell, with a progress bar on a terminal."""
    from tqdm import tqdm  # type: ignore[import-untyped]

    hidden = not progress or not sys.stderr.isatty()
    with tqdm(total=setting.cells, unit=" cells", leave=False, file=sys.stderr, disable=hidden) as bar:
        return play_all(setting, contenders, oracles, bar.update)


def provenance(words: list[str], setting: Setting, files: Sequence[str]) -> dict[str, Any]:
    """Return command, code, machine and inputs as JSON builtins."""
    paths = [Path(file) for file in files] or shipped()
    return about(words) | {
        "seed": setting.seed,
        "rounds": setting.rounds,
        "batches": list(setting.batches),
        "profiles": list(setting.costs),
        "recordings_sha256": {path.name: hashlib.sha256(path.read_bytes()).hexdigest()[:16] for path in paths},
        "note": "Acceptance is replayed from recordings; round times come from the profiles, clock noise is drawn.",
    }


def as_json(report: dict[str, Any]) -> str:
    """Return the report as a file holds it: one line a cell."""
    cells = ",\n  ".join(json.dumps(cell) for cell in report["cells"])
    rest = json.dumps({key: value for key, value in report.items() if key != "cells"}, indent=1)
    return f'{rest[:-2]},\n "cells": [\n  {cells}\n ]\n}}\n'
