"""``make test`` reports what it skipped because a program is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.left_out import TOOLS, left_out
from tests.prometheus import BINARY


def install(folder: Path, *programs: str) -> None:
    for name in programs:
        (folder / name).touch(mode=0o755)


def test_every_missing_program_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert all(tool in left_out() for tool in TOOLS) and "make test-tools" in left_out()
    install(tmp_path, "google-chrome")
    assert "Prometheus" in left_out() and "Chromium" not in left_out()
    install(tmp_path, BINARY)
    assert "make test-tools" not in left_out()
