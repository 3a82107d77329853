"""What drafts from finished texts add to those from a request's own text. See benchmarks/README.md.

    python -m benchmarks.lookup_memory FILE.npz [--at-once N] [--mb MB] [--json F]
    python -m benchmarks.lookup_memory --kernel [--json F]

FILE has ``tokens`` (prompt, then output, one request after another), ``prompt`` and ``output`` (lengths), as recordings
of ``benchmarks.traces.texts``, and may name each request's ``source``; each gets a row of its own. Requests run in this
order, N at once, each token by token. A lookup is right where it equals the recorded text, so the figures are exact; no
draft model is included.

``--kernel`` times the lookups of a round on a GPU: own texts of 8,000 tokens, alone and with a full memory.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks.harness.results import Report, command_parser
from sglang_adaptive.lookup import DRAFTS
from sglang_adaptive.sglang_plugin.stages.lookups.memory import END, SEARCHED, SIBLINGS, SOURCES, Memory, marks_of
from sglang_adaptive.sglang_plugin.stages.lookups.texts import SLOTS, Texts, longest_match

Tokens = npt.NDArray[np.int64]
LONGEST_TEXT = 1 << 17
OWN_TOKENS = 8000
LAUNCHES = 200


class Round(NamedTuple):
    """A lookup: how many of its drafts were right, and whether they were from another request's text."""

    right: int
    remembered: bool


class Replay:
    """Requests that run at once, and the memory of those that have finished."""

    def __init__(self, megabytes: float) -> None:
        capacity = int(megabytes * (1 << 18))
        self._ring = np.full(capacity, END, np.int64)
        self._memory = Memory(capacity, LONGEST_TEXT, SEARCHED["cuda"]) if capacity else None
        self._running: dict[int, tuple[Tokens, int]] = {}
        """By number of a request: its known text and the mark of its prompt."""

    def rounds(self, number: int, text: Tokens, prompt: int, kept: list[Round]) -> Iterator[None]:
        """Run a request, one round at a time; *kept* gets its rounds."""
        place, version, ranges, marks = prompt, 0, list[tuple[int, int]](), marks_of(None, text[:prompt])
        while place < len(text) - 1:
            known, follows = text[: place + 1], text[place + 1 : place + 1 + DRAFTS]
            others: list[Tokens] = []
            if self._memory is not None:
                if version != self._memory.version:
                    version, ranges = self._memory.version, self._memory.sources(None, marks)
                self._running[number] = known, marks[-1]
                siblings = [text for at, (text, mark) in self._running.items() if mark == marks[-1] and at != number]
                others = [*siblings[:SIBLINGS], *(self._ring[begin:end] for begin, end in ranges)][:SOURCES]
            match, source = longest_match(known)
            copied, remembered = known[source + 1 + np.arange(DRAFTS) % (place - source)] if match else known[:0], False
            for other in others:
                found, source = longest_match(known, other)
                if found > match:
                    match, copied, remembered = found, other[source + 1 : source + 1 + DRAFTS], True
            size = min(len(copied), len(follows))
            wrong = np.flatnonzero(copied[:size] != follows[:size])
            kept.append(Round(int(wrong[0]) if len(wrong) else size, remembered))
            place += kept[-1].right + 1
            yield
        if self._memory is not None:
            self._running.pop(number, None)
            self._memory.keep(None, text, prompt)
            for begin, new in self._memory.arrivals():
                self._ring[begin : begin + len(new)] = new


def played(texts: Sequence[tuple[Tokens, int]], at_once: int, megabytes: float) -> list[Round]:
    """Return the rounds of all texts, which have a prompt of so many tokens."""
    replay, waiting, found = Replay(megabytes), iter(enumerate(texts)), list[Round]()
    running: list[Iterator[None]] = []
    while True:
        while len(running) < at_once and (one := next(waiting, None)):
            running.append(replay.rounds(one[0], *one[1], found))
        if not running:
            return found
        running = [one for one in running if next(one, running) is None]


def recorded(path: Path) -> dict[str, list[tuple[Tokens, int]]]:
    """Return the texts of a file with the lengths of their prompts, by source."""
    found = defaultdict(list)
    with np.load(path) as file:
        prompts = file["prompt"].tolist()
        texts = np.split(file["tokens"].astype(np.int64), np.cumsum(file["prompt"] + file["output"])[:-1])
        names = file["source"].tolist() if "source" in file.files else ["all"] * len(texts)
        for name, text, prompt in zip(names, texts, prompts, strict=True):
            found[str(name)].append((text, prompt))
    return found


def kernel_seconds(requests: int, searched: int) -> float:
    """Return the median seconds of the kernels of a round on this GPU; each request searches *searched* tokens."""
    import torch

    vocabulary, draw = 128_000, np.random.default_rng(1)
    texts = Texts(LONGEST_TEXT, vocabulary, "cuda", 64 << 18)

    def written(size: int) -> Tokens:
        return np.minimum(draw.zipf(1.3, size), vocabulary - 1).astype(np.int64)

    texts.remember(0, written(64 << 18))
    for slot in range(requests):
        texts.write(slot, 0, written(OWN_TOKENS), comes=True)
    each = searched // SOURCES
    texts.search([((), [(place * each, (place + 1) * each) for place in range(SOURCES)])] * requests)
    slots = torch.arange(requests, dtype=torch.int32, device="cuda")
    lengths, counts = torch.full_like(slots, OWN_TOKENS - 1).long(), torch.full_like(slots, 4)
    tokens = torch.from_numpy(written(requests * 8)).int().cuda()
    found = []
    for _ in range(LAUNCHES):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(10):
            texts.follow(slots, lengths, tokens, counts)
        torch.cuda.synchronize()
        found.append((time.perf_counter() - begin) / 10)
    return median(found)


def main(argv: Sequence[str]) -> int:
    """Replay a file, or time the kernel, and print one row per source or batch size."""
    given = parser().parse_args(argv)
    if given.kernel == (given.file is not None):
        parser().error("expected either a file or --kernel")
    rows: list[list[object]] = []
    if given.kernel:
        columns = ["requests", "own_text_us", "with_memory_us"]
        for requests in (one for one in (1, 4, 8, 16) if one <= SLOTS):
            alone, both = (1e6 * kernel_seconds(requests, searched) for searched in (0, SEARCHED["cuda"]))
            rows.append([requests, alone, both])
            print(f"{requests} requests: {alone:.1f} us a round by the own text, {both:.1f} us with a full memory")
    else:
        columns = ["source", "requests", "own_text", "with_memory", "share_of_memory"]
        for name, texts in recorded(given.file).items():
            tokens = sum(len(text) - prompt - 1 for text, prompt in texts)
            own, both = (played(texts, given.at_once, megabytes) for megabytes in (0, given.mb))
            share = sum(one.right for one in both if one.remembered) / tokens
            rows.append([name, len(texts), tokens / len(own), tokens / len(both), share])
            print(
                f"{name}, {len(texts)} requests, {given.at_once} at once: {tokens / len(own):.3f} tokens a round by "
                f"the own text, {tokens / len(both):.3f} with memory ({len(own) / len(both):.3f}), {share:.1%} from it"
            )
    if given.json:
        about = "none: times of a kernel" if given.kernel else "recorded text, token by token"
        report = Report(given.json, "lookup_memory", argv, acceptance=about)
        report.add(columns=columns, rows=rows)
        report.write()
    return 0


def parser() -> argparse.ArgumentParser:
    found = command_parser("lookup_memory", __doc__)
    found.add_argument("file", type=Path, nargs="?", help="recorded texts")
    found.add_argument("--kernel", action="store_true", help="time the kernel on a GPU instead")
    found.add_argument("--at-once", type=int, default=1, help="requests that run side by side (default: 1)")
    found.add_argument("--mb", type=float, default=64.0, help="size of the memory (default: 64)")
    found.add_argument("--json", type=Path)
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
