"""Times a kernel that looks drafts up in each request's own text, on a device: ``python -m benchmarks.lookup_kernel``.

No server uses it. It writes what ``sglang_adaptive.lookups.lookup`` defines, from a table of token ids by request row,
and keeps that table: what a round accepted is appended first. ``--check`` compares it with the definition alone;
with TRITON_INTERPRET=1 that needs no device.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import triton
import triton.language as tl

from sglang_adaptive.lookups.lookup import DRAFTS, LONGEST, SHORTEST, Text

PLACE_BITS = 24
"""A match and its place are compared as one 31-bit number: the longer first, then the later."""
BATCHES, CONTEXTS = (1, 4, 16, 64), (2_000, 32_000, 128_000)
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _append(table, stride, rows, lengths, accepted, accepted_stride, counts, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def, unused-ignore]
    request = tl.program_id(0)
    count, length = tl.load(counts + request), tl.load(lengths + request)
    each = tl.arange(0, WIDTH)
    new = tl.load(accepted + request * accepted_stride + each, mask=each < count, other=0)
    tl.store(table + tl.load(rows + request).to(tl.int64) * stride + length + each, new, mask=each < count)
    tl.store(lengths + request, length + count)


@triton.jit(do_not_specialize=["parts"])  # type: ignore[untyped-decorator, unused-ignore]
def _look_up(  # type: ignore[no-untyped-def, unused-ignore]
    table, stride, rows, lengths, drafts, matches, best, done, parts,
    BLOCK: tl.constexpr, SHORTEST: tl.constexpr, LONGEST: tl.constexpr, DRAFTS: tl.constexpr, PLACE_BITS: tl.constexpr,
):  # fmt: skip
    request, part = tl.program_id(0), tl.program_id(1)
    text = table + tl.load(rows + request).to(tl.int64) * stride
    last = tl.load(lengths + request) - 1
    token, before = tl.load(text + last), tl.load(text + last - 1, mask=last > 0, other=-1)
    found = tl.zeros((BLOCK,), tl.int32)
    for first in range(part * BLOCK, last, parts * BLOCK):
        place = first + tl.arange(0, BLOCK)
        alike = tl.load(text + place, mask=place < last, other=-2) == token
        alike = alike & (tl.load(text + place - 1, mask=(place > 0) & (place < last), other=-2) == before)
        match = tl.where(alike, 2, 0)
        back = 2
        while (back < LONGEST) & (tl.max(alike.to(tl.int32), 0) > 0):
            wanted = tl.load(text + last - back, mask=back <= last, other=-1)
            alike = alike & (tl.load(text + place - back, mask=alike & (place >= back), other=-2) == wanted)
            match += alike.to(tl.int32)
            back += 1
        found = tl.maximum(found, tl.where(match >= SHORTEST, (match << PLACE_BITS) | place, 0))
    tl.atomic_max(best + request, tl.max(found, 0))
    if tl.atomic_add(done + request, 1) == parts - 1:  # this program is the last one of its request
        key = tl.atomic_max(best + request, 0)
        source = key & ((1 << PLACE_BITS) - 1)
        match = key >> PLACE_BITS
        each = tl.arange(0, DRAFTS)
        copied = tl.load(text + source + 1 + each % tl.maximum(last - source, 1), mask=match > 0, other=0)
        tl.store(drafts + request * DRAFTS + each, copied)
        tl.store(matches + request, match)
        tl.store(best + request, 0)
        tl.store(done + request, 0)


class Lookup:
    """Buffers of one batch size, and both launches."""

    def __init__(self, requests: int, device: str, block: int, warps: int, parts: int) -> None:
        def made(*shape: int) -> torch.Tensor:
            return torch.zeros(shape, dtype=torch.int32, device=device)

        self.drafts, self.matches = made(requests, DRAFTS), made(requests)
        self._best, self._done = made(requests), made(requests)
        self._block, self._warps, self._parts = block, warps, parts

    def run(
        self, table: torch.Tensor, rows: torch.Tensor, lengths: torch.Tensor,
        accepted: torch.Tensor | None = None, counts: torch.Tensor | None = None,
    ) -> None:  # fmt: skip
        """Append to the texts of *rows* [b] of *table* [n, context], and write ``drafts`` [b, DRAFTS], ``matches`` [b].

        *lengths* [b] are the tokens of each text, at least one, and are raised by *counts* [b], the tokens that count
        of each row of *accepted* [b, a power of two]. All are int32.
        """
        requests = len(rows)
        if accepted is not None:
            _append[(requests,)](
                table, table.stride(0), rows, lengths, accepted, accepted.stride(0), counts, WIDTH=accepted.shape[1],
                num_warps=1,
            )  # fmt: skip
        _look_up[(requests, self._parts)](
            table, table.stride(0), rows, lengths, self.drafts, self.matches, self._best, self._done, self._parts,
            BLOCK=self._block, SHORTEST=SHORTEST, LONGEST=LONGEST, DRAFTS=DRAFTS, PLACE_BITS=PLACE_BITS,
            num_warps=self._warps,
        )  # fmt: skip


def expected(text: torch.Tensor) -> tuple[int, list[int]]:
    """Return match and drafts behind *text* [length], from the definition, in whole tensors."""
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
    """Return a text: of rare words, of few, one that copies stretches of itself, or one that is a single token."""
    draw = np.random.default_rng(seed)
    if kind == "one token":
        return np.full(length, 7, np.int32)
    words = {"rare words": 128_000, "few words": 50, "copies": 128_000}[kind]
    # Half of all tokens are among the sixteen likeliest ones, about as in text.
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
    """Compare launches with the definition, as tensors and as ``Text`` has it; return how many lookups they were."""
    random, compared = Random(1), 0
    for seed, kind in enumerate(["rare words", "few words", "copies", "one token"] * 3):
        requests, most = random.choice([1, 3, 5]), 40 if INTERPRETED and kind == "one token" else 700
        table = torch.full((8, 800), -9, dtype=torch.int32, device=device)  # what lies behind a text must not matter
        rows = random.sample(range(8), requests)
        before, counts = [random.randrange(1, most) for _ in rows], [random.randrange(0, 9) for _ in rows]
        texts = [
            written(kind, length + more, 100 * seed + at)
            for at, (length, more) in enumerate(zip(before, counts, strict=True))
        ]
        accepted = torch.full((requests, 16), -5, dtype=torch.int32, device=device)
        for at, (row, length, text) in enumerate(zip(rows, before, texts, strict=True)):
            table[row, :length] = torch.from_numpy(text[:length])
            accepted[at, : counts[at]] = torch.from_numpy(text[length:])
        as_ints = [torch.tensor(value, dtype=torch.int32, device=device) for value in (rows, before, counts)]
        lookup = Lookup(requests, device, *random.choice([(64, 1, 3), (128, 4, 1), (256, 4, 7)]))
        lookup.run(table, as_ints[0], as_ints[1], accepted, as_ints[2])
        for again in range(2):  # the second launch finds its scratch as the first one did
            for at, text in enumerate(texts):
                got = int(lookup.matches[at]), lookup.drafts[at].tolist()
                assert got == expected(torch.from_numpy(text)), (kind, again, at)
                defined = Text(np.append(text, 1), len(text) - 1).at(len(text) - 1)
                assert got[0] == defined.match, (kind, again, at)
                compared += 1
            lookup.run(table, as_ints[0], as_ints[1])
        assert as_ints[1].tolist() == [len(text) for text in texts]
    return compared


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


def measure(out: Path | None) -> None:
    """Print and write the microseconds of every batch size, context, kind of text, and some shapes of the launch."""
    flush = torch.zeros(256 << 20, dtype=torch.uint8, device="cuda")
    nothing = torch.zeros(1, dtype=torch.int32, device="cuda")
    empty = timed(lambda: nothing.zero_(), flush, 100)  # what a graph with one tiny kernel takes, launch included
    print(f"{torch.cuda.get_device_name()}, an empty kernel {empty:.1f} us")
    rowsets = []
    for context in CONTEXTS:
        for requests in BATCHES:
            for kind in ("copies", "rare words", "one token"):
                if kind == "one token" and (requests, context) not in ((1, 2_000), (4, 32_000), (64, 128_000)):
                    continue
                rowsets += _shapes(requests, context, kind, flush)
    document = {
        "device": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": triton.__version__,
        "command": " ".join(["python -m benchmarks.lookup_kernel", *sys.argv[1:]]),
        "empty_cold_us": round(empty, 2), "cells": rowsets,
    }  # fmt: skip
    if out is not None:
        out.write_text(json.dumps(document, indent=1) + "\n")


def _shapes(requests: int, context: int, kind: str, flush: torch.Tensor) -> list[dict[str, Any]]:
    table = torch.zeros((requests, context + 64), dtype=torch.int32, device="cuda")
    for row in range(requests):
        table[row, :context] = torch.from_numpy(written(kind, context, row % 8))
    rows = torch.arange(requests, dtype=torch.int32, device="cuda")
    lengths = torch.full((requests,), context, dtype=torch.int32, device="cuda")
    accepted = torch.full((requests, 32), 5, dtype=torch.int32, device="cuda")
    none = torch.zeros(requests, dtype=torch.int32, device="cuda")
    wanted = [expected(table[row, :context]) for row in range(min(requests, 4))]
    cells: list[dict[str, Any]] = []
    for block, warps in ((512, 4), (1024, 4), (1024, 8), (2048, 8)):
        for parts in sorted({max(1, min(programs // requests, -(-context // block))) for programs in (132, 264, 528)}):
            lookup = Lookup(requests, "cuda", block, warps, parts)
            alone = partial(lookup.run, table, rows, lengths)
            both = partial(lookup.run, table, rows, lengths, accepted, none)
            both()
            got = [(int(lookup.matches[row]), lookup.drafts[row].tolist()) for row in range(len(wanted))]
            assert got == wanted, (requests, context, kind, block, warps, parts)
            cell = {"requests": requests, "context": context, "text": kind, "launch": [block, warps, parts]}
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


def main() -> None:
    """Check, and measure where that is asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare with the definition, and measure nothing")
    parser.add_argument("--json", type=Path, help="file for the results")
    options = parser.parse_args()
    print(f"{check('cpu' if INTERPRETED else 'cuda')} lookups are those of the definition")
    if not options.check:
        measure(options.json)


if __name__ == "__main__":
    main()
