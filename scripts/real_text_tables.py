"""The tables of recorded text in the README and docs/performance.md, from ``make bench-real``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from statistics import geometric_mean
from typing import Any

RESULT = Path(__file__).parents[1] / "benchmarks" / "results" / "real" / "real.json"
POLICY, EMA = "throughput", "ema"
MIXED = "at random"
TEXTS = {
    "smollm2-greedy": "SmolLM2-135M-Instruct on Spec-Bench's questions",
    "tiny": "a tiny model, three very different kinds of text",
}


def first_figure() -> Iterator[str]:
    """Yield tokens/s of the policy over what a user could set instead, by batch size."""
    cells = [cell for cell in _cells() if cell["scene"] == MIXED and cell["texts"] in TEXTS]
    loads = sorted({cell["load"] for cell in cells if cell["load"].isdigit()}, key=int)
    yield f"| tokens/s of the `throughput` policy over | {' | '.join(f'batch {load}' for load in loads)} |"
    yield f"|---|{'---|' * len(loads)}"
    for texts, title in TEXTS.items():
        for words, ratio in (
            ("no speculation", _over_off),
            ("SGLang's EMA", _over_ema),
            ("the best fixed depth", _over),
        ):
            means = [
                geometric_mean(ratio(cell) for cell in cells if cell["load"] == load and cell["texts"] == texts)
                for load in loads
            ]
            yield f"| {title}: {words} | {' | '.join(f'{mean:.2f}' for mean in means)} |"


def gates() -> Iterator[str]:
    """Yield every gate of the policy, its bound, what was measured, and what an oracle reaches in hindsight."""
    yield "| Figure | Aim | Measured | In hindsight |\n|---|---|---|---|"
    for gate in json.loads(RESULT.read_text())["gates"]:
        sign = "<=" if gate.get("at") == "most" else ">="
        aim = f"{sign} {gate['bound']:g}" if gate["bound"] is not None else ""
        measured = f"{gate['measured']:.4g}{'' if gate.get('met', True) else ', **missed**'}"
        hindsight = f"{gate['hindsight']:.4g}" if "hindsight" in gate else ""
        yield f"| {gate['figure']} | {aim} | {measured} | {hindsight} |"


def _cells() -> list[dict[str, Any]]:
    report = json.loads(RESULT.read_text())
    return [dict(zip(report["columns"], row, strict=True)) for row in report["cells"]]


def _over(cell: Any) -> float:
    return float(cell[f"{POLICY} over best single"])


def _over_ema(cell: Any) -> float:
    return _over(cell) / float(cell[f"{EMA} over best single"])


def _over_off(cell: Any) -> float:
    return _over(cell) * float(cell["best single over no speculation"])
