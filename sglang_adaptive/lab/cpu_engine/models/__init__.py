"""The tiny model pair that ships with the package, and its held-out prompts; `python -m train` makes them."""

from __future__ import annotations

import json
from pathlib import Path

FOLDER = Path(__file__).parent


def target_path() -> str:
    """Path for --model-path: an 8-layer byte-level Llama."""
    return str(FOLDER / "target")


def draft_path() -> str:
    """Path for --speculative-draft-model-path: its EAGLE-3 draft."""
    return str(FOLDER / "draft")


def block_draft_path() -> str:
    """Path for --speculative-draft-model-path: its DFLASH draft, which proposes blocks of 16 tokens."""
    return str(FOLDER / "block_draft")


def families() -> list[str]:
    """The prompt families, easiest to draft for first."""
    accepted = {name: family["accept_length"]["7"] for name, family in evaluation()["families"].items()}
    return sorted(accepted, key=lambda name: -accepted[name])


def prompts(family: str) -> list[str]:
    """Prompts that neither model was trained on. Raises KeyError for a family that is not in `families()`."""
    return _read("prompts.json")[family]


def evaluation() -> dict:
    """Measured rounds of the pair, by family and steps, and the machine they were measured on."""
    return _read("evaluation.json")


def _read(name: str) -> dict:
    return json.loads((FOLDER / name).read_text(encoding="utf-8"))
