"""The example policy that docs/contributing.md names runs in the simulator and drives a controller."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from sglang_adaptive.policy.base import POLICIES

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "docs" / "examples"


@pytest.fixture
def examples(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[ModuleType, ModuleType]]:
    monkeypatch.syspath_prepend(str(FOLDER))
    before = dict(POLICIES)
    yield import_module("token_budget"), import_module("play")
    for name in ("token_budget", "play"):
        del sys.modules[name]
    POLICIES.clear()
    POLICIES.update(before)


def test_it_has_30_lines() -> None:
    body = ast.parse((FOLDER / "token_budget.py").read_text()).body[-1]
    assert isinstance(body, ast.ClassDef) and body.end_lineno is not None
    assert body.end_lineno - body.lineno < 30


def test_it_plays_and_beats_every_fixed_depth_of_the_page(examples: tuple[ModuleType, ModuleType]) -> None:
    shares = examples[1].shares()
    assert shares["token_budget"] > max(shares["static-0"], shares["static-3"])
