"""Prompts of several chunks; for all but the last chunk, the draft only makes keys and values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest import mock

from sglang_adaptive.lab.cpu_engine import models
from sglang_adaptive.sglang_plugin.stages.fast_path import kv_only
from tests.engine.stepping import Stepper

CHUNK = 64
"""Tokens of a chunk in `Stepped`."""
EASY = models.prompts("easy")


def long_prompts(lab: Stepper) -> Iterator[None]:
    """A prompt of four chunks, one of three while the first is answered, and one that shares the first's prefix."""
    text = lab.encode("".join(EASY))
    first = [100, *text[: 4 * CHUNK - 20]]
    lab.force(3)
    lab.ask("a", first, 16)
    for _ in range(6):
        yield
    lab.ask("b", [101, *text[40 : 3 * CHUNK]], 16)
    while not lab.done():
        yield
    lab.ask("c", [*first[: 3 * CHUNK], *text[300 : 300 + 2 * CHUNK]], 16)
    while not lab.done():
        yield


def compare(lab: Stepper) -> dict[str, Any]:
    """Return the drafts in both loops with whole passes and short ones, and with faults in the short ones in one."""
    (chunks,), write = lab.round.of(kv_only.Chunks), kv_only.KvOnlyBackend.forward
    ways: dict[str, Any] = {
        "whole": write,
        "short": write,
        "never written": mock.Mock(side_effect=kv_only.Written),
        "failing": mock.Mock(side_effect=ValueError("a fault")),
    }
    found: dict[str, Any] = {}
    for loop in ("overlap", "normal"):
        for how, forward in list(ways.items())[: None if loop == "overlap" else 2]:
            chunks.guard.closed, before = how == "whole", chunks.passes
            with mock.patch.object(kv_only.KvOnlyBackend, "forward", forward):
                ran = lab.run(long_prompts, every=8, overlap=loop == "overlap")
            found[f"{loop}, {how}"] = {**ran, "short": chunks.passes - before, "error": chunks.guard.error}
            chunks.guard.error = None
    return found
