"""``sglang-adaptive simulate --suite real``."""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sglang_adaptive.lab.simulate import text
from sglang_adaptive.lab.simulate.contenders import Contender, chosen, fitting
from sglang_adaptive.lab.simulate.cost import RoundCost, SimulationError, load_cost
from sglang_adaptive.lab.simulate.ours import LOOKUPS
from sglang_adaptive.lab.simulate.real.cell import Cell
from sglang_adaptive.lab.simulate.real.gates import gates
from sglang_adaptive.lab.simulate.real.oracles import ORACLES
from sglang_adaptive.lab.simulate.real.suite import DEFAULT_ROUNDS, Setting, play
from sglang_adaptive.lab.simulate.real.texts import load_texts, shipped
from sglang_adaptive.lab.simulate.report import FORMAT, Played, about
from sglang_adaptive.lab.simulate.targets import Gate
from sglang_adaptive.policy.profile import shipped_config

NAME = "real"
POLICIES = ("throughput", "ema", "ema-all")
"""Policies that play if none is named; every fixed depth plays anyway."""
DEFINITION = (
    "over_single = output tokens per second that requests see, divided by those at the best single depth of the same "
    "cell; switches = changes of steps per hour; slowest = mean seconds per token of the slowest tenth of the "
    "requests, divided by those at the best single depth. Round times are from a profile; acceptance is recorded."
)


def run(options: argparse.Namespace, words: list[str]) -> Played:
    """Play the suite."""
    if "oracle" in options.policy:
        raise SimulationError(f"--policy oracle: needs random acceptance; --suite {NAME} has {', '.join(ORACLES)}")
    texts, costs = load_texts(options.texts), load_costs(options.profile)
    setting = Setting(texts, costs, rounds=options.rounds or DEFAULT_ROUNDS, seed=options.seed)
    names, oracles = asked(options.policy, list(ORACLES))
    contenders, left_out = pick(names, setting)
    cells = play(setting, contenders, oracles)
    judged = gates(cells)
    report = json_report(cells, judged, provenance(words, setting, options.texts, left_out))
    return Played(report, text.recorded(", ".join(texts), report))


def asked(policies: list[str], oracles: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the policies and the *oracles* that play if ``--policy`` names *policies*."""
    names = [name for name in policies if name not in ORACLES] if policies else list(POLICIES)
    return names, [name for name in oracles if name in policies or not policies]


def load_costs(path: str | None) -> dict[str, RoundCost]:
    """Return the cost profile in *path* by its name; without a path, every shipped one."""
    paths = [path] if path else sorted(map(str, shipped_config("profiles").glob("*.json")))
    return dict(load_cost(one) for one in paths)


def pick(names: list[str], setting: Setting) -> tuple[list[Contender], list[str]]:
    """Return the contenders called *names* that can run on every profile, and a sentence on each other one."""
    in_all = set.intersection(*(set(cost.steps) for cost in setting.costs.values()))
    if LOOKUPS in names and not all(texts.match for texts in setting.texts.values()):
        lacking = next(name for name, texts in setting.texts.items() if not texts.match)
        raise SimulationError(f"--policy {LOOKUPS}: {lacking} was recorded without lookups; expected other --texts")
    return fitting(chosen(names, tuple(setting.steps)) if names else [], in_all)


def provenance(
    words: list[str], setting: Setting, files: Sequence[str], left_out: Sequence[str] = ()
) -> dict[str, Any]:
    """Return command, code, machine and inputs as JSON builtins."""
    paths = [Path(file) for file in files] or shipped()
    return about(words, left_out) | {
        "seed": setting.seed,
        "rounds": setting.rounds,
        "batches": list(setting.batches),
        "profiles": list(setting.costs),
        "recordings_sha256": {path.name: hashlib.sha256(path.read_bytes()).hexdigest()[:16] for path in paths},
        "note": "Acceptance is replayed from recordings; round times come from the profiles; clock noise is random.",
    }


def json_report(cells: Sequence[Cell], judged: Sequence[Gate], source: Mapping[str, Any]) -> dict[str, Any]:
    """Return the whole report as JSON builtins; figures are rounded to 5 digits."""
    return {
        "format": FORMAT,
        "suite": NAME,
        "provenance": dict(source),
        "definition": DEFINITION,
        "gates": [gate.as_json() for gate in judged],
        "cells": [_rounded(asdict(cell)) for cell in cells],
    }


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 5)
    return {str(key): _rounded(each) for key, each in value.items()} if isinstance(value, dict) else value
