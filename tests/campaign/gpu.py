"""The campaign's servers on a GPU: fa3, CUDA graphs and overlap, the tiny pair in bfloat16.

On a GPU, a verify, a plain decode and another batch size round a token's logits differently: see ``asking``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sglang_adaptive.lab.cpu_engine.server import CpuServer
from sglang_adaptive.serve_cpu import STAND_IN

_ARGUMENTS = {
    # For pages of several tokens SGLang picks flashinfer, which has no kernel for the tiny pair's heads of 32.
    "--attention-backend": "fa3",
    "--dtype": "bfloat16",
    "--sampling-backend": "pytorch",
    # Other servers may share the GPU, and each takes what its slots need.
    "--mem-fraction-static": "0.95",
    "--max-total-tokens": "65536",
    "--max-running-requests": "32",
    "--cuda-graph-max-bs-decode": "32",
    "--cuda-graph-backend-prefill": "disabled",
}


used = False
"""Whether this campaign runs on a GPU; the command line sets it once."""


def name() -> str:
    """Return the GPU's name according to its driver."""
    asked = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.splitlines()[0].strip()


class GpuServer(CpuServer):
    """The same server, started by SGLang's own command on this host's GPU."""

    def __init__(self, arguments: Sequence[str], *, extra_environment: Mapping[str, str], **more: Any) -> None:
        super().__init__(arguments, extra_environment=extra_environment, **more)
        own = [word for flag, value in _ARGUMENTS.items() if flag not in arguments for word in (flag, value)]
        where = ["--host", self.host, "--port", str(self.port), "--sleep-on-idle"]
        self.command = [sys.executable, "-m", "sglang.launch_server", *arguments, *own, *where]
        # Kernels are compiled into the user's cache once, for all servers.
        given = {name: value for name, value in extra_environment.items() if name != "XDG_CACHE_HOME"}
        path = given.get("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
        kept = [part for part in path.split(os.pathsep) if part and Path(part) != STAND_IN]
        self.environment = {**os.environ, **given, "PYTHONPATH": os.pathsep.join(kept)}
