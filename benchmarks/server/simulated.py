"""SGLang plugin of the benchmarks: acceptance drawn per request from a declared process.

With dummy weights a draft is never right. SGLang can force accept lengths (``SGLANG_SIMULATE_ACC_LEN``); this replaces
the function behind that switch, so that draft j of every request is accepted with probability p given draft j - 1 was.
Draft, verify, draft-extend, scheduling and HTTP stay the real path. Every figure made with it is to be called
"simulated acceptance".
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

PROCESS_FILE = "BENCHMARK_ACCEPTANCE_FILE"
"""Environment variable: the file that holds p, one float64, shared by benchmark and scheduler."""

ENTRY_POINT = "benchmark_simulated_acceptance"


class Process:
    """The probability p in a file that both sides have mapped; a change is seen from the next round on."""

    def __init__(self, path: str | Path, create: bool = False) -> None:
        if create:
            np.zeros(1).tofile(path)
        self._cell = np.memmap(path, dtype=np.float64, mode="r+", shape=(1,))

    @property
    def p(self) -> float:
        """P(draft j accepted | draft j - 1 accepted), the same at every position."""
        return float(self._cell[0])

    @p.setter
    def p(self, value: float) -> None:
        self._cell[0] = value


def environment(path: Path, plugin_folder: Path) -> dict[str, str]:
    """Return the variables that a server needs to simulate; writes the plugin's metadata into *plugin_folder*."""
    info = plugin_folder / f"{ENTRY_POINT}-0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {ENTRY_POINT}\nVersion: 0\n")
    (info / "entry_points.txt").write_text(f"[sglang.srt.plugins]\n{ENTRY_POINT} = {__name__}:register\n")
    root = Path(__file__).resolve().parents[2]
    inherited = [folder for folder in [os.environ.get("PYTHONPATH")] if folder]
    return {
        PROCESS_FILE: str(path),
        "SGLANG_SIMULATE_ACC_LEN": "1",
        "SGLANG_SIMULATE_ACC_TOKEN_MODE": "real-draft-token",
        "PYTHONPATH": os.pathsep.join([str(plugin_folder), str(root), *inherited]),
    }


def register() -> None:
    """Entry point: replace SGLang's draw, in a process that is told to simulate."""
    if PROCESS_FILE not in os.environ:
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    target = "sglang.srt.speculative.spec_utils.generate_simulated_accept_index"
    HookRegistry.register(target, Draw(Process(os.environ[PROCESS_FILE])), HookType.REPLACE)


class Draw:
    """In the place of SGLang's function: one accept length a request, drawn on the device."""

    __name__ = "draw"

    def __init__(self, process: Process) -> None:
        self._process = process

    def __call__(
        self,
        accept_index: Any,
        predict: Any,
        num_correct_drafts: Any,
        candidates: Any,
        target_predict: Any,
        bs: int,
        spec_steps: int,
        **_: Any,
    ) -> Any:
        """Fill *predict* and *num_correct_drafts* (bs) in place; return the accept index (bs, spec_steps + 1)."""
        import torch

        width, device = spec_steps + 1, accept_index.device
        passed = torch.rand(bs, spec_steps, device=device) < self._process.p
        correct = passed.long().cumprod(dim=1).sum(dim=1)
        column = torch.arange(width, device=device)
        nodes = accept_index[:, :1] + column
        num_correct_drafts.copy_(correct)
        # A chain's node i predicts what follows it: the next draft while accepted, then the target's own token.
        following = torch.cat([candidates[:, 1:], candidates[:, :1]], dim=1).to(predict.dtype)
        chosen = torch.where(column < correct[:, None], following, target_predict.to(predict.dtype))
        predict[nodes.long()] = chosen
        return torch.where(column <= correct[:, None], nodes, -1).to(torch.int32)
