"""The size gate fails where a figure rises, and says what to do; it never raises a kept value by itself."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from scripts import size

FIGURES = {"product lines": 90, "switches": 3}


def test_the_gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    kept = tmp_path / "size.json"
    kept.write_text(json.dumps({"product lines": 100, "switches": 2}))
    monkeypatch.setattr(size, "ROOT", tmp_path)
    monkeypatch.setattr(size, "KEPT", kept)
    monkeypatch.setattr(size, "figures", lambda: FIGURES)
    for arguments in [], ["--write"]:
        monkeypatch.setattr(sys, "argv", ["size.py", *arguments])
        assert size.main() == 1
        shown = capsys.readouterr()
        assert shown.err.startswith("size: switches: kept 2, now 3.") and shown.err.count("\n") == 1
        assert ("below the kept value: product lines." in shown.out) is not arguments
    assert json.loads(kept.read_text()) == {"product lines": 90, "switches": 2}
    kept.write_text(json.dumps(FIGURES))
    assert size.main() == 0


def test_every_figure_is_kept() -> None:
    assert size.figures().keys() == json.loads(size.KEPT.read_text()).keys()


def test_constants() -> None:
    source = """
LEAST = 0.5
EDGES = (0.1, -2.0)
SLOPE: float = 1.0 / 200.0
NAME, ON = "x", True
MOST, HALF, FOLLOWS = 3, 0.5, len(EDGES) + 1
small = 3

@dataclass
class Options:
    margin: Annotated[float, number("...", 0.0, 1.0)] = 0.01
    lookup: bool = False
    rounds: int = 0

class Plain:
    gain: float = 0.5
"""
    assert size.constants(source) == 6
