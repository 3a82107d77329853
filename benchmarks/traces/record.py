"""Record a trace: `python -m benchmarks.traces.record --target FOLDER --draft FOLDER --prompts FILE --out FILE`."""

from __future__ import annotations

import argparse
import datetime
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.harness.results import command_parser
from benchmarks.traces import texts
from benchmarks.traces.files import write
from benchmarks.traces.prompts import Prompt, load
from benchmarks.traces.recorder import Recorder, Recording
from benchmarks.traces.weights import ModelError, fingerprint
from sglang_adaptive.lab.traces import Trace
from sglang_adaptive.provenance import cpu_model, pasteable


def main(argv: Sequence[str]) -> int:
    parser = _parser()
    options = parser.parse_args(argv)
    try:
        prompts = load(options.prompts)[: options.questions]
        recorder = Recorder(
            *(options.target, options.draft, options.device, getattr(torch, options.dtype)),
            *(options.temperature, options.seed),
        )
    except (ValueError, ModelError) as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    prompted = _described(options)
    about = origin(
        "record", argv, options.target, options.draft, prompted, options.device, options.dtype, options.temperature
    )
    done: list[tuple[Prompt, Recording]] = []
    started = time.monotonic()
    for first in range(0, len(prompts), options.wave):
        done += _wave(recorder, prompts[first : first + options.wave], options, started)
        save(options.out, about, done)
        if options.tokens:
            texts.save(options.tokens, [with_tokens(one) for _, one in done])
        positions = sum(len(recording.accepted) for _, recording in done)
        _say(f"{options.out}: {len(done)} requests, {positions} positions", started)
    return 0


def _wave(
    recorder: Recorder, prompts: list[Prompt], options: argparse.Namespace, started: float
) -> list[tuple[Prompt, Recording]]:
    """Record *prompts* in batches of similar length; return them in their own order."""
    ids = [recorder.encode(prompt.text, options.chat) for prompt in prompts]
    found: dict[int, Recording] = {}
    for batch in batches([len(one) + options.positions for one in ids], options.batch_tokens):
        recordings = recorder.record([ids[i] for i in batch], options.positions, options.ignore_eos)
        found.update(zip(batch, recordings, strict=True))
        _say(f"{len(found)} of {len(prompts)} in this wave", started)
    return [(prompts[i], found[i]) for i in sorted(found) if len(found[i].accepted)]


def batches(lengths: Sequence[int], most: int) -> Iterator[list[int]]:
    """Yield the indices of texts of similar length, in padded batches of at most *most* tokens."""
    batch: list[int] = []
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        if batch and (len(batch) + 1) * lengths[index] > most:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


def save(path: Path, about: dict, done: list[tuple[Prompt, Recording]]) -> None:
    """Write what is *done* so far as a trace, atomically; *about* is its description."""
    trace = Trace(
        about,
        category=tuple(prompt.category for prompt, _ in done),
        length=np.array([len(one.accepted) for _, one in done], np.int32),
        loop_start=np.array([one.loop_start for _, one in done], np.int32),
        accepted=np.concatenate([np.zeros(0, np.uint8), *(one.accepted for _, one in done)]),
        match=np.concatenate([np.zeros(0, np.uint8), *(one.lookups[:, 0] for _, one in done)]),
        looked_up=np.concatenate([np.zeros(0, np.uint8), *(one.lookups[:, 1] for _, one in done)]),
    )
    unfinished = path.with_name(path.name + ".part")
    write(unfinished, trace)
    os.replace(unfinished, path)


def _described(options: argparse.Namespace) -> str:
    start = "chat template" if options.chat else "as they are"
    return f"{options.prompts.parent.name}/{options.prompts.name}, {start}, up to {options.positions} positions"


def with_tokens(one: Recording) -> texts.Request:
    """Return a recording as a request that a server can repeat."""
    known = len(one.accepted) + 1  # the last token of the text ends its last round
    return one.prompt, one.tokens[:known], [*one.accepted.tolist(), 0]


def origin(
    module: str, argv: Sequence[str], target: Path, draft: Path, prompts: str, device: str = "cpu",
    dtype: str = "float32", temperature: float = 0.0,
) -> dict[str, Any]:  # fmt: skip
    """Return the description of a ``benchmarks.traces.MODULE`` trace: models, prompts, hardware, command, day."""
    name = torch.cuda.get_device_name(device) if torch.device(device).type == "cuda" else cpu_model()
    return {
        "target": fingerprint(target),
        "draft": fingerprint(draft),
        "prompts": prompts,
        "temperature": temperature,
        "hardware": f"{name}, {dtype}, torch {torch.__version__}",
        "command": pasteable(["python", "-m", f"benchmarks.traces.{module}", *argv]),
        "date": datetime.date.today().isoformat(),
    }


def _say(line: str, started: float) -> None:
    print(f"{time.monotonic() - started:7.0f} s  {line}", file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = command_parser("traces.record", __doc__)
    parser.add_argument("--target", type=Path, required=True, help="folder of a Llama in Transformers' layout")
    parser.add_argument("--draft", type=Path, required=True, help="folder of its EAGLE-3 draft, as SGLang loads it")
    parser.add_argument("--prompts", type=Path, required=True, help=".jsonl like Spec-Bench's, or .json by category")
    parser.add_argument("--out", type=Path, required=True, help="trace to write (.npz), rewritten after every wave")
    parser.add_argument("--tokens", type=Path, help="also write the tokens (.npz), for servers that replay the texts")
    parser.add_argument("--chat", action="store_true", help="put each prompt through the target's chat template")
    parser.add_argument("--temperature", type=float, default=0.0, help="target's temperature (default 0, greedy)")
    parser.add_argument("--seed", type=int, default=0, help="sampling seed (default 0)")
    parser.add_argument("--positions", type=int, default=256, help="maximum positions per request (default 256)")
    parser.add_argument("--ignore-eos", action="store_true", help="continue past the end of a text")
    parser.add_argument("--questions", type=int, help="maximum prompts, from the categories in turn (default all)")
    parser.add_argument("--wave", type=int, default=60, help="prompts between writes (default 60)")
    tokens = "tokens per batch, with prompts, outputs and padding; sets its memory (default 24576)"
    parser.add_argument("--batch-tokens", type=int, default=24576, help=tokens)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], default="float32")
    return parser


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
