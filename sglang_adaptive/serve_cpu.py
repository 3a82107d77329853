"""`sglang-adaptive serve-cpu`: SGLang's own server, in an environment where it runs without a GPU."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path

from sglang_adaptive.command_line import CommandParser

PLUGIN = "sglang_adaptive_cpu_engine"
"""Name of the CPU engine's entry point in the group `sglang.srt.plugins`."""
SWITCH = "SGLANG_ADAPTIVE_CPU_ENGINE"
"""Environment variable; "1" activates that plugin."""
ATTENTION_BACKEND = "torch_ref"
STAND_IN = Path(__file__).parent / "lab" / "cpu_engine" / "stand_in"
EXTERNAL_MODELS = "SGLANG_EXTERNAL_MODEL_PACKAGE"
ARCHITECTURES = "sglang_adaptive.lab.cpu_engine.architectures"

_DEFAULTS: tuple[tuple[str, str], ...] = (
    ("--attention-backend", ATTENTION_BACKEND),
    # SGLang's "auto" converts float32 checkpoints to float16; exact output matters more than memory here.
    ("--dtype", "float32"),
    ("--host", "127.0.0.1"),
    # SGLang would size the pool by the machine's memory.
    ("--max-total-tokens", "65536"),
    # SGLang mistakes memory that other programs fill meanwhile for its weights, and exits if too little is left.
    ("--mem-fraction-static", "0.95"),
    ("--max-running-requests", "32"),
    # Otherwise an idle SGLang scheduler polls without a pause.
    ("--sleep-on-idle", ""),
)
_GRAPH_FLAGS = ("--cuda-graph-backend-decode", "--cuda-graph-backend-prefill")


class LaunchError(Exception):
    """The server cannot be started with these arguments; the message is one line."""


def environment(threads: int = 1, base: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables to set, on top of `base`, for a process that runs SGLang on the CPU engine.

    Raises LaunchError if this package's plugin is not visible to the running Python.
    """
    if not entry_points(group="sglang.srt.plugins", name=PLUGIN):
        raise LaunchError(f"plugin {PLUGIN} is not installed in {sys.prefix}: run `pip install .` in the project")
    path = [str(STAND_IN), *filter(None, base.get("PYTHONPATH", "").split(os.pathsep))]
    variables = {
        SWITCH: "1",
        "SGLANG_USE_CPU_ENGINE": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "TORCHDYNAMO_DISABLE": "1",
        "OMP_NUM_THREADS": str(threads),
        "PYTHONPATH": os.pathsep.join(path),
        # Without cached bytecode each of the three processes compiles some thousand modules at each start.
        "PYTHONDONTWRITEBYTECODE": "",
    }
    if not base.get(EXTERNAL_MODELS):
        variables[EXTERNAL_MODELS] = ARCHITECTURES
    allowed = base.get("SGLANG_PLUGINS")
    if allowed and PLUGIN not in allowed.split(","):
        variables["SGLANG_PLUGINS"] = f"{allowed},{PLUGIN}"
    return variables


def default_arguments(given: Sequence[str] = ()) -> list[str]:
    """Return the SGLang arguments that the CPU engine needs or prefers, except those that `given` sets.

    Raises LaunchError if another device or a file of arguments is named.
    """
    if _has(given, "--config"):  # SGLang puts its values before the command line, so these here would override them
        raise LaunchError("--config: serve-cpu takes no file of arguments; expected them on the command line")
    device = value_of(given, "--device")
    if device not in (None, "cpu"):
        raise LaunchError(f"--device {device}: serve-cpu runs on cpu; use `sglang serve` for other devices")
    added = [] if device else ["--device", "cpu"]
    for flag, value in _DEFAULTS:
        if not _has(given, flag):
            added += [flag, value] if value else [flag]
    if not _has(given, "--disable-cuda-graph"):
        for flag in _GRAPH_FLAGS:
            if not _has(given, flag):
                added += [flag, "disabled"]
    return added


def command(given: Sequence[str]) -> list[str]:
    """Return the full command line of the server. Raises LaunchError if `given` names no model."""
    if not any(_has(given, flag) for flag in ("--model-path", "--model")):
        raise LaunchError("--model-path is missing; see `sglang-adaptive serve-cpu --help`")
    return [sys.executable, "-m", "sglang_adaptive.lab.cpu_engine.start", *given, *default_arguments(given)]


def parser() -> CommandParser:
    """Return the parser of the command's own options, for help; SGLang parses all others."""
    added = ", ".join(f"{flag} {value}".rstrip() for flag, value in _DEFAULTS)
    found = CommandParser(
        "serve-cpu",
        "Starts SGLang's server on the CPU with kernels written in PyTorch, for tests, development and trying it out. "
        "It is not fast, and it supports only dense Llama-like models (multi-head or grouped-query attention).\n\n"
        "Every argument except --threads goes to SGLang; python -m sglang.launch_server --help lists them. Unless set, "
        f"these are added: {added}, and no CUDA graphs.",
        [
            ("--model-path MODEL --port 30000", "a server without speculation"),
            ("--model-path MODEL --speculative-algorithm EAGLE3 --speculative-draft-model-path DRAFT "
             "--speculative-eagle-topk 1 --speculative-adaptive-config conservative", "an adaptive one"),
        ],
        "2 bad usage; otherwise the server's own",
        usage="sglang-adaptive serve-cpu --model-path PATH [--threads N] [SGLang arguments ...]",
    )  # fmt: skip
    found.add_argument("--model-path", metavar="PATH", help="the model: a folder or a hub name")
    found.add_argument(
        "--threads", metavar="N", help="threads for the model's process (default: 1; more rarely help a small model)"
    )
    return found


def main(argv: Sequence[str]) -> int:
    """Replace this process with the server; returns an exit code only if it cannot be started."""
    if "--help" in argv or "-h" in argv:
        parser().print_help()
        return 0
    try:
        threads, rest = take_threads(argv)
        line = command(rest)
        variables = environment(threads)
    except LaunchError as error:
        print(f"sglang-adaptive serve-cpu: {error}", file=sys.stderr)
        return 2
    os.execve(line[0], line, {**os.environ, **variables})


def take_threads(argv: Sequence[str]) -> tuple[int, list[str]]:
    """Split `--threads N` from the arguments that go to SGLang. Raises LaunchError if it is wrong."""
    text = value_of(argv, "--threads")
    if text is None:
        if _has(argv, "--threads"):
            raise LaunchError("--threads: a number is missing")
        return 1, list(argv)
    if not text.isdecimal() or int(text) == 0:
        raise LaunchError(f"--threads: got {text}; expected a whole number of at least 1")
    rest = [a for i, a in enumerate(argv) if a.partition("=")[0] != "--threads" and argv[i - 1 : i] != ["--threads"]]
    return int(text), rest


def _has(arguments: Sequence[str], flag: str) -> bool:
    return any(a.partition("=")[0] == flag for a in arguments)


def value_of(arguments: Sequence[str], flag: str) -> str | None:
    """Return the value that *arguments* give a flag; None without it."""
    for index, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name == flag:
            return value if equals else next(iter(arguments[index + 1 : index + 2]), None)
    return None
