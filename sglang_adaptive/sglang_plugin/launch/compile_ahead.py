"""Compiles CUDA modules in a process of their own, from the launcher's first second on.

FlashInfer compiles a module when it is first used, in the scheduler, while every request waits. Its sampling module
alone takes a core two minutes. A stock server pays that at its first sampled request; the warm-up would pay it before
the server is ready. Here it runs beside the imports, the weights and the graphs instead. FlashInfer holds a file lock
while it compiles a module, so a scheduler that needs one early waits for the rest of it, and nothing is compiled twice.

``python -m sglang_adaptive.sglang_plugin.launch.compile_ahead SETUP`` is that process; SETUP is JSON of `Setup`.
"""

from __future__ import annotations

import ctypes
import dataclasses
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from sglang_adaptive.sglang_plugin.launch.activation import NOTE, runs_on_cpu

logger = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1
_NICENESS = 5
"""Below the server's own start-up, where cores are few."""

_started: Compiler | None = None
"""The launcher's one compiler; None where nothing is compiled ahead."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What decides which modules a server needs."""

    attention: tuple[str, str, int] | None
    """Data type of the model and of its KV cache, and the size of a head, where FlashInfer computes attention."""


class Compiler:
    """The process that compiles, seen from the launcher."""

    def __init__(self, setup: Setup) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, json.dumps(dataclasses.asdict(setup))],
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # its compilers end with it, as one group
        )

    @property
    def running(self) -> bool:
        """Whether modules are still being compiled."""
        return self._process.poll() is None

    @property
    def succeeded(self) -> bool:
        """Whether every module is there."""
        return self._process.poll() == 0

    def wait(self, seconds: float) -> bool:
        """Wait for its end for at most *seconds*; return whether every module is there."""
        try:
            return self._process.wait(seconds) == 0
        except subprocess.TimeoutExpired:
            return False


def begin(cls: type, server_args: Any, *args: Any, **kwargs: Any) -> None:
    """Before Engine._launch_scheduler_processes: start compiling what an adaptive server on CUDA will need."""
    global _started
    try:
        if getattr(server_args, NOTE, {"reason": "static"})["reason"] is None and not runs_on_cpu(server_args):
            _started = Compiler(_setup(server_args))
    except Exception:
        logger.warning("adaptive: nothing is compiled ahead; first uses will compile", exc_info=True)


def compiler() -> Compiler | None:
    """Return the compiler of this launcher."""
    return _started


def _setup(server_args: Any) -> Setup:
    from sglang.srt.arg_groups.model_override_base import model_config_of
    from sglang.srt.arg_groups.overrides import resolved_view

    cfg = resolved_view(server_args)
    if cfg.attention_backend != "flashinfer":
        return Setup(None)
    model = model_config_of(server_args)
    if model.attention_arch.name != "MHA":
        return Setup(None)
    dtype = str(model.dtype).removeprefix("torch.")
    kv = {"fp8_e4m3": "float8_e4m3fn", "fp8_e5m2": "float8_e5m2"}.get(cfg.kv_cache_dtype, dtype)
    return Setup((dtype, kv, model.head_dim))


def modules(setup: Setup) -> Iterator[Any]:
    """Yield FlashInfer's specifications of the modules that *setup* needs, the slowest first."""
    from flashinfer.jit.sampling import gen_sampling_module

    yield gen_sampling_module()
    if setup.attention is not None:
        import torch
        from flashinfer.jit.attention import gen_batch_decode_module, gen_batch_prefill_module

        dtype, kv, head = (getattr(torch, setup.attention[0]), getattr(torch, setup.attention[1]), setup.attention[2])
        # No rotary positions in the kernel, no sliding window, no cap on logits.
        shape = (dtype, kv, dtype, torch.int32, head, head, 0, False, False)
        yield gen_batch_prefill_module("fa2", *shape, False)
        yield gen_batch_decode_module(*shape)


def compile_all(specs: Iterator[Any], say: Callable[[str], None]) -> bool:
    """Compile each of *specs* that is not there yet, all at once, one line each; return whether all are there."""
    from concurrent.futures import ThreadPoolExecutor

    def one(spec: Any) -> bool:
        if spec.is_compiled:
            return True
        begun = time.perf_counter()
        try:
            spec.build(verbose=False, need_lock=True)
        except Exception as error:
            # A compiler's output follows the first line; its end has the error itself.
            lines = [line for line in str(error).splitlines() if line.strip()]
            reason = next((line for line in lines if "error" in line.lower()), lines[0] if lines else repr(error))
            say(f"adaptive: could not compile {spec.name} ahead: {type(error).__name__}: {reason[:300]}")
            return False
        say(f"adaptive: compiled {spec.name} in {time.perf_counter() - begun:.1f} s, beside the server's start")
        return True

    with ThreadPoolExecutor() as pool:
        return all(list(pool.map(one, specs)))


def main(setup: str) -> int:
    """Compile the modules of *setup*; return 0 when all are there."""
    _end_with_the_launcher()
    os.nice(_NICENESS)
    # nvcc optimises one file on every core; not one of FlashInfer's flags, because another flag is another module.
    flags = os.environ.get("NVCC_APPEND_FLAGS", "")
    os.environ["NVCC_APPEND_FLAGS"] = f"{flags} --split-compile=0".strip()
    given = json.loads(setup)
    attention = given["attention"]
    try:
        specs = list(modules(Setup(None if attention is None else tuple(attention))))
    except Exception as error:
        _say(f"adaptive: nothing is compiled ahead: {type(error).__name__}: {error}")
        return 1
    return 0 if compile_all(iter(specs), _say) else 1


def _end_with_the_launcher() -> None:
    launcher = os.getppid()

    def end(*_: Any) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.killpg(0, signal.SIGTERM)
        os._exit(1)

    signal.signal(signal.SIGTERM, end)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != launcher:  # it ended before the call above
        end()


def _say(line: str) -> None:
    print(time.strftime("[%Y-%m-%d %H:%M:%S] ") + line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
