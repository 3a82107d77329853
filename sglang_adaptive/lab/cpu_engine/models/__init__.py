"""The tiny model pair that ships with the package, and its held-out prompts; `python -m train` makes them."""

from __future__ import annotations

import json
from pathlib import Path

FOLDER = Path(__file__).parent
FAMILIES = ("easy", "mixed", "hard")
"""Of the prompts, easiest to draft for first; ``evaluation.json`` has the measured rounds by family and steps."""


def target_path() -> str:
    """Path for --model-path: an 8-layer byte-level Llama."""
    return str(FOLDER / "target")


def draft_path() -> str:
    """Path for --speculative-draft-model-path: its EAGLE-3 draft."""
    return str(FOLDER / "draft")


def block_draft_path() -> str:
    """Path for --speculative-draft-model-path: its DFLASH draft, which proposes blocks of 16 tokens."""
    return str(FOLDER / "block_draft")


def prompts(family: str) -> list[str]:
    """Prompts that neither model was trained on. Raises KeyError for a family that is not in FAMILIES."""
    return json.loads((FOLDER / "prompts.json").read_text(encoding="utf-8"))[family]
