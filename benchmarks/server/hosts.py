"""Where servers run: one GPU with dummy weights, or the CPU engine with the package's tiny pair."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.server.policies import Policy
from benchmarks.server.simulated import ENTRY_POINT

OURS = "sglang_adaptive"
"""Name of this package's entry point."""

STRICT_LOADS = "SGLANG_CRASH_ON_TRITON_LOAD_AFTER_READY"


@dataclass(frozen=True)
class Host:
    """Turns a policy into the command line and the environment of a server."""

    target: str
    draft: str
    max_requests: int
    extra: tuple[str, ...] = ()
    speculation: tuple[str, ...] = ()
    """Arguments of servers that speculate, instead of EAGLE-3 with *draft*."""

    prefix_cache: bool = False
    """Whether SGLang's radix cache is on: prompts that come again then cost almost no prefill."""

    strict_loads: bool = False
    """A kernel that loads while serving ends a server with this package's plugin, instead of a line in its log."""

    def command(self, policy: Policy, folder: Path, profiles: Path, port: int) -> list[str]:
        """Return the server's command line; writes the configuration into *folder*."""
        given = [*self._base(), *self.extra, "--host", "127.0.0.1", "--port", str(port)]
        if policy.speculate:
            eagle = ("--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", self.draft)
            given += self.speculation or (*eagle, "--speculative-eagle-topk", "1")
            given += [*policy.arguments, *policy.files(folder, profiles)]
        return [sys.executable, "-m", "sglang.launch_server", *given]

    def environment(self, policy: Policy) -> dict[str, str]:
        """Return the variables that a server of *policy* needs beside those of the simulation."""
        plugins = [ENTRY_POINT, *self._plugins(), *([OURS] if policy.ours else [])]
        strict = {STRICT_LOADS: "1"} if self.strict_loads and policy.ours else {}
        return {**self._variables(), **policy.variables, **strict, "SGLANG_PLUGINS": ",".join(plugins)}

    def _base(self) -> list[str]:
        raise NotImplementedError

    def _plugins(self) -> list[str]:
        return []

    def _variables(self) -> Mapping[str, str]:
        return {}


@dataclass(frozen=True)
class Gpu(Host):
    """One CUDA device; several servers may share it, each with *kv_tokens* of KV cache."""

    kv_tokens: int = 100_000
    prefill_graphs: bool = False
    """Graphs for prefills cost 27 s of a start-up on an H200 and change no decode round."""

    def _base(self) -> list[str]:
        # The pool is capped by tokens: a share of memory would depend on which server allocates first.
        return [
            *("--model-path", self.target, *self._weights(), "--skip-tokenizer-init"),
            *(() if self.prefix_cache else ("--disable-radix-cache",)),
            *("--mem-fraction-static", "0.85", "--max-total-tokens", str(self.kv_tokens)),
            *("--max-running-requests", str(self.max_requests), "--cuda-graph-max-bs-decode", str(self.max_requests)),
            *(() if self.prefill_graphs else ("--cuda-graph-backend-prefill", "disabled")),
        ]

    def _weights(self) -> Sequence[str]:
        return ("--load-format", "dummy")


@dataclass(frozen=True)
class Cpu(Host):
    """The CPU engine: for rehearsals, not for figures."""

    def _base(self) -> list[str]:
        from sglang_adaptive.cpu_engine.launcher import default_arguments

        own = ["--model-path", self.target, "--max-running-requests", str(self.max_requests)]
        own += [] if self.prefix_cache else ["--disable-radix-cache"]
        return [*own, *default_arguments([*own, *self.extra])]

    def _plugins(self) -> list[str]:
        from sglang_adaptive.cpu_engine.names import PLUGIN

        return [PLUGIN]

    def _variables(self) -> Mapping[str, str]:
        from sglang_adaptive.cpu_engine.launcher import environment

        return environment()


def gpu(models: Path, max_requests: int, pair: str = "llama8b", **more: Any) -> Gpu:
    """Return the GPU host, *more* being fields of it; *models* holds PAIR/ and PAIR-eagle3/ (shapes.py)."""
    return Gpu(str(models / pair), str(models / f"{pair}-eagle3"), max_requests, **more)


def cpu(max_requests: int, **more: Any) -> Cpu:
    """Return the CPU host with the tiny pair that the package ships."""
    from sglang_adaptive.cpu_engine import models

    return Cpu(str(models.target_path()), str(models.draft_path()), max_requests, **more)


def merged_environment(*parts: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment under *parts*, later ones first; every PYTHONPATH of theirs is kept."""
    paths = [path for part in parts for path in part.get("PYTHONPATH", "").split(os.pathsep) if path]
    merged = {key: value for part in parts for key, value in part.items()}
    return {**os.environ, **merged, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}
