"""The campaign's servers on a GPU: fa3, CUDA graphs and overlap, the tiny pair in bfloat16.

There a verify, a plain decode and another batch size round a token's logits differently. So where a text parts from
that without speculation, the server without speculation says how far apart the two tokens were.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sglang_adaptive.client import Client, RequestError
from sglang_adaptive.cpu_engine.launcher import STAND_IN
from sglang_adaptive.cpu_engine.server import CpuServer

NEAR = 0.5
"""Nats between two tokens of a tie; the largest gap that SmolLM2 showed on an H200 between batch sizes alone."""

TIE = "a tie in bfloat16"
_ARGUMENTS = {
    # SGLang takes flashinfer for pages of several tokens, which has no kernel for the tiny pair's heads of 32.
    "--attention-backend": "fa3",
    "--dtype": "bfloat16",
    "--sampling-backend": "pytorch",
    "--mem-fraction-static": "0.5",
    "--max-total-tokens": "65536",
    "--max-running-requests": "32",
    "--cuda-graph-max-bs-decode": "32",
    "--cuda-graph-backend-prefill": "disabled",
}


used = False
"""Whether this campaign runs on a GPU; the command line says so, once."""


def name() -> str:
    """Return the name of the GPU, as its driver says it."""
    asked = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.splitlines()[0].strip()


class GpuServer(CpuServer):
    """The same server, by SGLang's own command on the GPU of this host."""

    def __init__(self, arguments: Sequence[str], *, extra_environment: Mapping[str, str], **more: Any) -> None:
        super().__init__(arguments, extra_environment=extra_environment, **more)
        own = [word for flag, value in _ARGUMENTS.items() if flag not in arguments for word in (flag, value)]
        where = ["--host", self.host, "--port", str(self.port), "--sleep-on-idle"]
        self.command = [sys.executable, "-m", "sglang.launch_server", *arguments, *own, *where]
        # Kernels are compiled into the user's cache, once for all servers.
        given = {name: value for name, value in extra_environment.items() if name != "XDG_CACHE_HOME"}
        self.environment = {**os.environ, **given, "PYTHONPATH": _without_stand_in(given)}


def _without_stand_in(given: Mapping[str, str]) -> str:
    path = given.get("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    return os.pathsep.join(part for part in path.split(os.pathsep) if part and Path(part) != STAND_IN)


def is_tie(plain: Client, body: Mapping[str, Any], ours: Any, theirs: Any) -> bool:
    """Return whether the first token by which two answers to *body* differ is as good as a tie without speculation."""
    if isinstance(ours, list) and isinstance(theirs, list):
        asked = body.get("text")
        bodies = [{"text": text} for text in asked] if isinstance(asked, list) else [body] * len(ours)
        parts = zip(bodies, ours, theirs, strict=False)
        return all(a["output_ids"] == b["output_ids"] or is_tie(plain, one, a, b) for one, a, b in parts)
    if not (isinstance(ours, dict) and isinstance(theirs, dict)):
        return False
    pairs = enumerate(zip(ours["output_ids"], theirs["output_ids"], strict=False))
    parted = next(((at, pair) for at, pair in pairs if pair[0] != pair[1]), None)
    if parted is None:
        return False
    at, (own, other) = parted
    try:
        read = plain.post("/generate", _reading(body, {"logprob_start_len": 0}))
        prompt = [entry[1] for entry in read["meta_info"]["input_token_logprobs"]]
        more = {"input_ids": [*prompt, *ours["output_ids"][:at]], "token_ids_logprob": [own, other]}
        found = plain.post("/generate", _reading({}, more))["meta_info"]["output_token_ids_logprobs"][0]
    except (RequestError, KeyError, IndexError, TypeError):
        return False
    chances = {entry[1]: entry[0] for entry in found}
    return abs(chances[own] - chances[other]) <= NEAR


def _reading(body: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    prompt = {name: body[name] for name in ("text", "input_ids") if name in body}
    return {**prompt, "sampling_params": {"temperature": 0, "max_new_tokens": 1}, "return_logprob": True, **more}
