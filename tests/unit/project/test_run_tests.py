"""``make test`` says what it left out for want of a program."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.prometheus import BINARY

RUN_TESTS = runpy.run_path(str(Path(__file__).parents[3] / "scripts" / "run_tests.py"))
LEFT_OUT: Callable[[], str] = RUN_TESTS["_left_out"]
TOOLS: dict[str, Any] = RUN_TESTS["TOOLS"]


def install(folder: Path, *programs: str) -> None:
    for name in programs:
        (folder / name).touch(mode=0o755)


def test_every_missing_program_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert all(tool in LEFT_OUT() for tool in TOOLS) and "make test-tools" in LEFT_OUT()
    install(tmp_path, "google-chrome")
    assert "Prometheus" in LEFT_OUT() and "Chromium" not in LEFT_OUT()
    install(tmp_path, BINARY)
    assert "make test-tools" not in LEFT_OUT()
