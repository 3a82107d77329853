"""The names by which ``tests/engine/servers.py`` finds the tiny mixture of experts."""

from __future__ import annotations

from types import SimpleNamespace

from benchmarks.harness.shapes import TINY_MOE_ARGUMENTS, TINY_MOE_PAIR

tiny = SimpleNamespace(PAIR=TINY_MOE_PAIR, ARGUMENTS=TINY_MOE_ARGUMENTS)
