"""Compiles CUDA modules in a separate process, from the launcher's first second on.

SGLang and FlashInfer compile modules on first use, in the scheduler, one at a time. On a fresh host with an H100, a
stock server compiles for 30 s before it is ready, and for 95 s at its first sampled request, while all other requests
wait. Here modules are compiled in parallel while weights load. Both libraries hold a file lock while they compile a
module and check again once they have it. So a scheduler that needs a module early waits for the rest of its
compilation, and nothing is compiled twice.

``python -m sglang_adaptive.sglang_plugin.launch.compile_ahead SETUP`` is that process; SETUP is JSON of `Setup`.
"""

from __future__ import annotations

import ctypes
import dataclasses
import json
import logging
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psutil

from sglang_adaptive.sglang_plugin.launch.activation import adapts, runs_on_cpu
from sglang_adaptive.sglang_plugin.setup import model_config

logger = logging.getLogger(__name__)

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_NICENESS = 5
"""Lower priority than the server's own start-up, where cores are few."""
_SLOW = 1.0
"""Seconds above which a module was compiled, not just found."""
started: subprocess.Popen[bytes] | None = None
"""The process that compiles for this launcher; None where nothing is compiled ahead."""

Job = tuple[str, Callable[[], Any]]
"""A module's name, and the function that compiles it if needed."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What decides which modules a server needs."""

    dtype: str
    """Of the model, by torch's name."""
    kv_dtype: str
    vocabulary: int
    head: int | None
    """Size of a head's key; None where keys and values are not stored per head, as with MLA."""
    kv_heads: int
    """On one rank."""
    flashinfer: bool
    """Whether FlashInfer computes attention."""
    selects: bool
    """Whether the draft selects among the likeliest tokens of each position, as DFlash2 does."""


def start(setup: Setup) -> subprocess.Popen[bytes]:
    """Start the process that compiles; it returns 0 if all modules are compiled."""
    command = [sys.executable, "-m", __name__, json.dumps(dataclasses.asdict(setup))]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)  # its group is its own


def begin(server_args: Any) -> None:
    """Start compiling what a server with *server_args* will need, if it is adaptive and on CUDA."""
    global started
    try:
        if adapts(server_args) and not runs_on_cpu(server_args):
            started = start(_setup(server_args))
    except Exception:
        logger.warning("adaptive: nothing is compiled ahead; first uses will compile", exc_info=True)


def _setup(server_args: Any) -> Setup:
    from sglang.srt.arg_groups.model_override_base import model_config_of
    from sglang.srt.arg_groups.overrides import resolved_view

    cfg, model = resolved_view(server_args), model_config_of(server_args)
    dtype = str(model.dtype).removeprefix("torch.")
    ranks = cfg.tp_size // cfg.attn_dp_size
    return Setup(
        dtype,
        {"fp8_e4m3": "float8_e4m3fn", "fp8_e5m2": "float8_e5m2"}.get(cfg.kv_cache_dtype, dtype),
        model.vocab_size,
        model.head_dim if model.attention_arch.name == "MHA" else None,
        model.get_num_kv_heads(ranks),
        cfg.attention_backend == "flashinfer",
        "DFlash2DraftModel" in (model_config(cfg.speculative_draft_model_path).get("architectures") or ()),
    )


def jobs(setup: Setup) -> Iterator[Job]:
    """Yield the modules that a server of *setup* needs, slowest first.

    An unneeded module costs a few seconds of one core here; a missing one costs a few seconds at the server's start.
    """
    import torch
    from flashinfer.jit.sampling import gen_sampling_module

    dtype, kv = getattr(torch, setup.dtype), getattr(torch, setup.kv_dtype)
    yield _of_flashinfer(gen_sampling_module())
    if setup.selects:
        from flashinfer.jit.topk import gen_topk_module

        yield _of_flashinfer(gen_topk_module())
    if setup.flashinfer and setup.head is not None:
        from flashinfer.jit.attention import gen_batch_decode_module, gen_batch_prefill_module
        from flashinfer.jit.cascade import gen_cascade_module
        from flashinfer.utils import determine_attention_backend

        # No rotary positions in the kernel, no sliding window, no cap on logits.
        shape = (dtype, kv, dtype, torch.int32, setup.head, setup.head, 0, False, False)
        # SGLang lets FlashInfer choose the kernel of prefills without a prefix: fa3's on Hopper.
        for kernel in {"fa2", determine_attention_backend(torch.device("cuda"), 0, False, False, dtype, kv)}:
            yield _of_flashinfer(gen_batch_prefill_module(kernel, *shape, False))
        yield _of_flashinfer(gen_batch_decode_module(*shape))
        yield _of_flashinfer(gen_cascade_module())  # of prefills after a cached prefix

    from sglang.kernels.ops.activation.activation import activation_module
    from sglang.kernels.ops.attention.rope import _jit_fused_rope_module
    from sglang.kernels.ops.kvcache.kvcache import can_use_store_cache
    from sglang.kernels.ops.speculative.sampling import _jit_sampling_module
    from sglang.kernels.ops.speculative.tree import _jit_tree_module

    yield "speculative_sampling", lambda: _jit_sampling_module(math.gcd(4, setup.vocabulary), True)
    yield "speculative_tree", _jit_tree_module
    yield "activation", lambda: activation_module(dtype)
    if setup.head is not None:
        head, row = setup.head, setup.head * setup.kv_heads * kv.itemsize
        yield "fused_rope", lambda: _jit_fused_rope_module(True, head, dtype, dtype)
        yield "kvcache", lambda: can_use_store_cache(row, row)


def compile_all(wanted: Iterable[Job]) -> bool:
    """Compile *wanted* in parallel; log one line of times and one of failures; return whether all succeeded."""
    with ThreadPoolExecutor(max_workers=16) as pool:
        running = [(name, pool.submit(_timed, compile_one)) for name, compile_one in wanted]
    failed = {name: error for name, future in running if (error := future.exception()) is not None}
    seconds = {name: future.result() for name, future in running if name not in failed}
    if failed:
        error = next(iter(failed.values()))
        logger.warning("adaptive: could not compile %s ahead: %s", ", ".join(failed), _reason(error))
    if took := [f"{name} {seconds[name]:.1f}" for name in seconds if seconds[name] >= _SLOW]:
        logger.info("adaptive: compiled during the server's start, in seconds: %s", ", ".join(took))
    return not failed


def main(setup: str) -> int:
    """Compile the modules of *setup*; return 0 if all succeed."""
    logging.basicConfig(level=logging.INFO, format="[%(asctime)s] %(message)s", datefmt="%Y-%m-%d %H:%M:%S")
    _end_with_the_launcher()
    os.nice(_NICENESS)
    # nvcc optimizes the parts of one file on all cores. Set here, because other FlashInfer flags make another module.
    flags = os.environ.get("NVCC_APPEND_FLAGS", "")
    os.environ["NVCC_APPEND_FLAGS"] = f"{flags} --split-compile=0".strip()
    try:
        return 0 if compile_all(jobs(Setup(**json.loads(setup)))) else 1
    except Exception as error:
        logger.warning("adaptive: no further module is compiled ahead: %s", _reason(error))
        return 1


def _of_flashinfer(spec: Any) -> Job:
    return spec.name, lambda: spec.is_compiled or spec.build(verbose=False, need_lock=True)


def _timed(compile_one: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    compile_one()
    return time.perf_counter() - begun


def _reason(error: BaseException) -> str:
    """Return the most telling line: the first error in a compiler's output."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    line = next((line for line in lines if "error" in line.lower()), lines[0] if lines else "")
    return f"{type(error).__name__}: {line[:300]}"


def _end_with_the_launcher() -> None:
    """Go on in a new process, which ends with all that it starts when the launcher ends, however that ends.

    The old one only waits for signals. A handler would run once the call that it interrupts returns, which may be when
    all is compiled, and threads would go on starting processes while it kills them.
    """
    signals, launcher, libc = (signal.SIGTERM, signal.SIGCHLD), os.getppid(), ctypes.CDLL(None)
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)  # a process whose parent was killed stays among the children
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    compiler = os.fork()
    if not compiler:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
        return
    while os.getppid() == launcher and signal.sigwait(signals) == signal.SIGCHLD:
        ended, status = os.waitpid(compiler, os.WNOHANG)
        if ended:
            sys.exit(os.waitstatus_to_exitcode(status))
    # ninja gives each command a process group of its own, so one signal to this group does not reach them.
    while left := [child for child in psutil.Process().children(recursive=True) if _runs(child)]:
        for child in left:
            with suppress(psutil.NoSuchProcess):
                child.kill()
        time.sleep(0.01)
    sys.exit(128 + signal.SIGTERM)


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
