"""Servers on the GPU, with SGLang's own models and kernels and the tiny pair."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness.start import Policy, Server
from sglang_adaptive.client import Client
from sglang_adaptive.lab.cpu_engine import models
from sglang_adaptive.lab.cpu_engine.server import free_port
from sglang_adaptive.lab.models.smollm2 import target_folder
from tests.engine.servers import adapting
from tests.engine.workload import Case, rotating_depth, run

START_SECONDS = 600.0
STARTS = ("In", "def", "On", "class", "By", "import", "a", "If")
"""Beginnings of eight prompts."""
CASES = [Case(f"{start} the", max_new_tokens=96) for start in STARTS]
TIERS = (0, 1, 3, 7)
CACHE = "--enable-hierarchical-cache"
"""The flag of a server that keeps prompts, which the others do not."""


def speculation(log: Path, tiers: Sequence[int] | Mapping[str, Any] | int) -> tuple[str, ...]:
    """Return EAGLE-3's arguments with chains; several *tiers*, or a configuration, are written next to *log*."""
    launch, adaptive = tiers if isinstance(tiers, int) else 3, ()
    if not isinstance(tiers, int):
        config = tiers if isinstance(tiers, Mapping) else {"1": {"candidate_steps": list(tiers)}}
        adaptive = adapting(log.parent, log.stem, config)
    return (
        *("--speculative-algorithm", "EAGLE3", "--speculative-eagle-topk", "1"),
        *("--speculative-num-steps", str(launch), "--speculative-num-draft-tokens", str(launch + 1)),
        *adaptive,
    )


@dataclass(frozen=True)
class Line:
    """A server that adapts among *tiers*, a static one of a single depth, or one without drafts."""

    log: Path
    pair: tuple[str, ...]
    backend: str
    tiers: Sequence[int] | Mapping[str, Any] | int | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    extra: Sequence[str] = ()

    def command(self, port: int) -> list[str]:
        """Return the command line; the configuration is written next to the log."""
        models = self.pair[:2] if self.tiers is None else (*self.pair, *speculation(self.log, self.tiers))
        return [
            *(sys.executable, "-m", "sglang.launch_server", "--host", "127.0.0.1", "--port", str(port)),
            *(*models, "--dtype", "bfloat16", "--attention-backend", self.backend),
            # Several servers share the GPU, and each takes what its slots need.
            *("--mem-fraction-static", "0.95", "--max-total-tokens", "65536"),
            *(() if CACHE in self.extra else ("--disable-radix-cache",)),
            *("--cuda-graph-max-bs-decode", "8", "--max-running-requests", "8"),
            # 58 graphs of prefills take a minute to capture, more where servers start side by side.
            *("--cuda-graph-backend-prefill", "disabled"),
            *self.extra,
        ]


@contextmanager
def serving_together(*lines: Line) -> Iterator[list[Client]]:
    """Run a server of each line; they start at the same time, and each logs to its own file."""
    with ExitStack() as stack:
        servers = []
        for line in lines:
            port, environment = free_port(), {**os.environ, **line.variables}
            server = Server(Policy(line.log.stem), line.log.parent, line.command(port), environment, port)
            stack.callback(server.stop, grace=0)
            server.launch()
            servers.append(server)
        for server in servers:
            server.wait(time.monotonic() + START_SECONDS)
        yield [server.client for server in servers]


def run_while_switching(client: Client, cases: Sequence[Case] = CASES) -> None:
    """Require whole answers while the depth rotates.

    Which round runs at which depth depends on timing, and bf16 ties may differ at another width.
    """
    with rotating_depth(client):
        outputs = run(client, cases, at_once=len(CASES))
    assert [output.completion_tokens for output in outputs] == [case.max_new_tokens for case in cases]


def smollm2_pair() -> tuple[str, ...]:
    """Return the arguments for SmolLM2 and its draft; skip a test without them."""
    target = target_folder()
    drafts = sorted(target.parent.glob("draft*"))
    if not target.is_dir() or not drafts:
        pytest.skip("needs SmolLM2: sglang-adaptive models get smollm2")
    return ("--model-path", str(target), "--speculative-draft-model-path", str(drafts[-1]))


def tiny_pair(folder: Path, backend: str) -> tuple[str, ...]:
    """Return the arguments for the tiny pair: the trained one on fa3, with wider heads and dummy weights elsewhere.

    flashinfer has no kernel for the trained pair's heads of 32.
    """
    paths = {"target": models.target_path(), "draft": models.draft_path()}
    if backend == "fa3":
        return ("--model-path", str(paths["target"]), "--speculative-draft-model-path", str(paths["draft"]))
    for role, path in paths.items():
        shutil.copytree(path, folder / role, ignore=shutil.ignore_patterns("*.safetensors", "*.bin"))
        config = folder / role / "config.json"
        config.write_text(json.dumps({**json.loads(config.read_text()), "head_dim": 64}))
    named = ("--model-path", str(folder / "target"), "--speculative-draft-model-path", str(folder / "draft"))
    return (*named, "--load-format", "dummy")
