"""Runs a small unit of one stage, for the tests."""

from __future__ import annotations

import json
from pathlib import Path

from tests.campaign.__main__ import main

SEED = "20"


def require_nothing_lost(stage: str, folder: Path) -> None:
    """Run a small unit of *stage*; fail if anything was lost, or hardly anything tried."""
    code = main(["--seed", SEED, "--units", "1", "--short", "--stage", stage, "--folder", str(folder)])
    found = json.loads((folder / "report.json").read_text())["stages"][stage]
    assert (code, found["losses"]) == (0, []), json.dumps(found["losses"], indent=1)
    assert sum(found["tried"].values()) > 30
