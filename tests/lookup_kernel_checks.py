"""Times the kernels that look drafts up in each request's own text: ``python -m benchmarks.lookup_kernel``.

The kernels keep a table of token ids; they first append the tokens that a round accepted. ``--check`` only compares
them with the definition, ``sglang_adaptive.lookups.lookup``, and measures nothing. With TRITON_INTERPRET=1 that needs
no device.
"""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.harness.results import command_parser, origin, write
from sglang_adaptive.lookups.lookup import DRAFTS, LONGEST, SHORTEST, Text
from sglang_adaptive.sglang_plugin.lookups import kernel

BATCHES, CONTEXTS = (1, 4, 16, 64), (2_000, 32_000, 128_000)
PARTS = (132, 264, 528)
"""Launch sizes to try, in programs."""
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


class Lookup:
    """Buffers for one batch size, and both launches."""

    def __init__(self, requests: int, slots: int, device: str, block: int, parts: int) -> None:
        def made(*shape: int) -> torch.Tensor:
            return torch.zeros(shape, dtype=torch.int32, device=device)

        self.drafts, self.matches, self.ends = made(slots, DRAFTS), made(slots), made(slots)
        self.told = made(requests, 3)
        self._best, self._done = made(requests), made(requests)
        self._block, self._parts = block, parts

    def append(
        self, table: torch.Tensor, rows: torch.Tensor, known: torch.Tensor, tokens: torch.Tensor, counts: torch.Tensor
    ) -> None:
        """Append *counts* [b] of *tokens* [b * width] to the texts *rows* of *table*, after *known* [b] + 1 tokens."""
        kernel.append(table, self.ends, rows, known, tokens, counts, self.drafts, self.matches, self.told)

    def look_up(self, table: torch.Tensor, rows: torch.Tensor) -> None:
        """Write ``drafts`` and ``matches`` of the texts *rows*."""
        kernel.look_up(
            table, self.ends, rows, self.drafts, self.matches, self.told, self._best, self._done, self._block,
            self._parts,
        )  # fmt: skip


def expected(text: torch.Tensor) -> tuple[int, list[int]]:
    """Return match and drafts after *text* [length], from the definition, in whole tensors."""
    last = len(text) - 1
    places = torch.arange(last, device=text.device)
    alike, match = torch.ones_like(places, dtype=torch.bool), torch.zeros_like(places)
    for back in range(min(LONGEST, last + 1)):
        alike = alike & (places >= back) & (text[(places - back).clamp(min=0)] == text[last - back])
        match += alike
    if not last or int(match.max()) < SHORTEST:
        return 0, [0] * DRAFTS
    source = int((match * 2**32 + places).argmax())
    copied = source + 1 + torch.arange(DRAFTS, device=text.device) % (last - source)
    return int(match[source]), text[copied].tolist()


def written(kind: str, length: int, seed: int) -> npt.NDArray[np.int32]:
    """Return a text: of rare words, of few words, one that copies stretches of itself, or one of a single token."""
    draw = np.random.default_rng(seed)
    if kind == "one token":
        return np.full(length, 7, np.int32)
    words = {"rare words": 128_000, "few words": 50, "copies": 128_000}[kind]
    # Half of all tokens are among the sixteen likeliest ones, about as in real text.
    text = np.minimum(draw.zipf(1.3, length), words).astype(np.int32)
    if kind == "copies":
        place = length // 10 + 2
        while place < length:
            size = min(int(draw.integers(5, 400)), length - place, place)
            begin = int(draw.integers(0, place - size + 1))
            text[place : place + size] = text[begin : begin + size]
            place += size + int(draw.integers(1, 30))
    return text


def check(device: str) -> int:
    """Compare launches with the definition, as tensors and as in ``Text``; return the number of lookups."""
    random, compared = Random(1), 0
    for seed, kind in enumerate(["rare words", "few words", "copies", "one token"] * (1 if INTERPRETED else 3)):
        requests, most = random.choice([1, 3, 5]), 40 if INTERPRETED and kind == "one token" else 700
        table = torch.full((8, 800), -9, dtype=torch.int32, device=device)  # content past a text must not matter
        rows = random.sample(range(8), requests)
        before = [random.randrange(1, most) for _ in rows]
        rounds = [[random.randrange(1, 9) for _ in rows] for _ in range(2)]
        texts = [written(kind, length + sum(more), 100 * seed + at)
                 for at, (length, *more) in enumerate(zip(before, *rounds, strict=True))]  # fmt: skip
        for row, length, text in zip(rows, before, texts, strict=True):
            table[row, :length] = torch.from_numpy(text[:length])
        lookup = Lookup(requests, 8, device, *((64, 3), (128, 1), (256, 7))[seed % 3])
        places, known, drafts = as_ints(rows, device), before, [[0] * DRAFTS for _ in rows]
        matches = [0] * requests
        for counts in rounds:
            tokens = torch.full((requests, 16), -5, dtype=torch.int32, device=device)
            for at, (text, length, count) in enumerate(zip(texts, known, counts, strict=True)):
                tokens[at, :count] = torch.from_numpy(text[length : length + count])
            lookup.append(table, places, as_ints(known, device) - 1, tokens.flatten(), as_ints(counts, device))
            lookup.look_up(table, places)
            for at, (row, text) in enumerate(zip(rows, texts, strict=True)):
                new, end = text[known[at] : known[at] + counts[at]].tolist(), known[at] + counts[at]
                agreed = next((i for i, token in enumerate(new) if token != drafts[at][i]), len(new))
                match, drafts[at] = expected(torch.from_numpy(text[:end]))
                told = lookup.told[at].tolist()
                assert told == [matches[at], agreed if matches[at] else 0, match], (kind, at, told)
                assert int(lookup.matches[row]) == match, (kind, at)
                assert not match or lookup.drafts[row].tolist() == drafts[at], (kind, at)
                assert match == Text(np.append(text[:end], 1), end - 1).at(end - 1).match, (kind, at)
                drafts[at] = lookup.drafts[row].tolist()
                matches[at] = match
                compared += 1
            known = [length + count for length, count in zip(known, counts, strict=True)]
    return compared


def as_ints(values: list[int], device: str) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device=device)


def timed(run: Any, flush: torch.Tensor | None, repeats: int) -> float:
    """Return the microseconds of a graph of *run*: the median over *repeats*, each after *flush* emptied the cache.

    Without *flush* a graph has 50 of them, and the cache stays warm.
    """
    times = 1 if flush is not None else 50
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(times):
            run()
    found = []
    for _ in range(repeats):
        if flush is not None:
            flush.zero_()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        found.append(1000.0 * begin.elapsed_time(end) / times)
    return float(statistics.median(found))


def measure(out: Path | None, argv: Sequence[str]) -> None:
    """Print and write the microseconds of every batch size, context, kind of text, and some launch shapes."""
    flush = torch.zeros(256 << 20, dtype=torch.uint8, device="cuda")
    nothing = torch.zeros(1, dtype=torch.int32, device="cuda")
    empty = timed(lambda: nothing.zero_(), flush, 100)  # time of a graph with one tiny kernel, including the launch
    print(f"{torch.cuda.get_device_name()}, an empty kernel {empty:.1f} us")
    rowsets = []
    for context in CONTEXTS:
        for requests in BATCHES:
            for kind in ("copies", "rare words", "one token"):
                if kind == "one token" and (requests, context) not in ((1, 2_000), (4, 32_000), (64, 128_000)):
                    continue
                rowsets += _shapes(requests, context, kind, flush)
    if out is not None:
        source = origin("lookup_kernel", argv)
        write(out, {"provenance": source, "empty_cold_us": round(empty, 2), "cells": rowsets})


def _shapes(requests: int, context: int, kind: str, flush: torch.Tensor) -> list[dict[str, Any]]:
    table = torch.zeros((requests, context + 64), dtype=torch.int32, device="cuda")
    for row in range(requests):
        table[row, :context] = torch.from_numpy(written(kind, context, row % 8))
    rows = torch.arange(requests, dtype=torch.int32, device="cuda")
    known = torch.full((requests,), context - 1, dtype=torch.int32, device="cuda")
    tokens = torch.full((requests * 32,), 5, dtype=torch.int32, device="cuda")
    none = torch.zeros(requests, dtype=torch.int32, device="cuda")
    wanted = [expected(table[row, :context]) for row in range(min(requests, 4))]
    cells: list[dict[str, Any]] = []
    for block in (512, 1024, 2048):
        for parts in sorted({max(1, min(programs // requests, -(-context // block))) for programs in PARTS}):
            lookup = Lookup(requests, requests, "cuda", block, parts)
            alone, first = (
                partial(lookup.look_up, table, rows),
                partial(lookup.append, table, rows, known, tokens, none),
            )

            def both(first: Any = first, alone: Any = alone) -> None:
                first()
                alone()

            both()
            got = [(int(lookup.matches[row]), lookup.drafts[row].tolist()) for row in range(len(wanted))]
            assert got == wanted, (requests, context, kind, block, parts)
            cell = {"requests": requests, "context": context, "text": kind, "launch": [block, parts]}
            cell |= {"warm_us": round(timed(alone, None, 10), 2), "cold_us": round(timed(alone, flush, 40), 2)}
            cells.append(cell | {"with_append_warm_us": round(timed(both, None, 10), 2)})
    best = min(cells, key=lambda cell: cell["cold_us"])
    print(
        f"{requests:3} x {context:7} {kind:10}: warm {best['warm_us']:6.1f}, cold {best['cold_us']:6.1f}, with append "
        f"{best['with_append_warm_us']:6.1f} us, launch {best['launch']} (of {len(cells)}, worst cold "
        f"{max(cell['cold_us'] for cell in cells):.1f})",
        flush=True,
    )
    return cells


def main(argv: Sequence[str]) -> None:
    """Check, and measure if requested."""
    parser = command_parser("lookup_kernel", __doc__)
    parser.add_argument("--check", action="store_true", help="only compare with the definition")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    options = parser.parse_args(argv)
    print(f"{check('cpu' if INTERPRETED else 'cuda')} lookups match the definition")
    if not options.check:
        measure(options.json, argv)


if __name__ == "__main__":
    main(sys.argv[1:])
