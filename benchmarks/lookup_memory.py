"""What drafts from finished texts add to those from a request's own text. See benchmarks/README.md.

    python -m benchmarks.lookup_memory FILE.npz... [--at-once N] [--mb MB] [--steps N --match M] [--json F]
    python -m benchmarks.lookup_memory --kernel [--json F]

FILE has ``tokens`` (prompt, then output, one request after another), ``prompt`` and ``output`` (lengths), as recordings
of ``benchmarks.traces.texts``, and may name each request's ``source``; each gets a row of its own. Several files have
answers to the same prompts, and those to one prompt come together. Requests run in this order, N at once, each token by
token. A lookup is right where it equals the recorded text, so the figures are exact.

Rounds verify looked-up drafts alone. With ``--steps`` they also verify as many drafts of a model, whose acceptance FILE
has as ``accepted``: alone, with lookups in their place where M tokens match, and whichever brings more in each row.

``--kernel`` times the lookups of a round on a GPU: own texts of 8,000 tokens, alone and with a full memory.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.harness.results import Report, command_parser
from benchmarks.traces.replay import rounds
from sglang_adaptive.command_line import count
from sglang_adaptive.policy.observation import DRAFTS, Lookup
from sglang_adaptive.sglang_plugin.stages.lookups.memory import SEARCHED, SIBLINGS, SOURCES, Memory, Range, marks_of
from sglang_adaptive.sglang_plugin.stages.lookups.texts import SLOTS, Texts

Tokens = npt.NDArray[np.int64]
LONGEST_TEXT = 1 << 17
OWN_TOKENS = 8000
LAUNCHES = 200


class Round(NamedTuple):
    """A lookup: how many of its drafts were right, and whether they were from another request's text."""

    right: int
    remembered: bool


class Text(NamedTuple):
    """A recorded request."""

    tokens: Tokens
    """Prompt, then output."""
    prompt: int
    accepted: npt.NDArray[np.uint8] | None
    """Drafts of a model that are accepted after each token of the output, if recorded."""


class Mixed(NamedTuple):
    """Rounds that verify this many *steps* of a model, or as many looked-up drafts where *match* tokens match.

    Without *match* each row has whichever brings more, which is known in hindsight only.
    """

    steps: int
    match: int | None

    def right(self, drafted: int, looked_up: int, match: int) -> int:
        """Return the accepted drafts of a row, of which so many of each kind are right."""
        if self.match is None:
            return min(self.steps, max(drafted, looked_up))
        return min(self.steps, looked_up if match >= self.match else drafted)


class Request:
    """A request that runs in a slot of the product's texts."""

    def __init__(self, recorded: Text, slot: int) -> None:
        self.text, self.prompt, self.accepted = recorded
        self.slot = slot
        self.marks = marks_of(None, self.text[: self.prompt])
        self.known, self.new = self.prompt, 1
        """Tokens on the device, and those that the latest round has brought; the prefill brings one."""
        self.version, self.ranges = 0, list[Range]()
        """The memory's version when the ranges to search were chosen."""

    @property
    def done(self) -> bool:
        """Whether no token is left that a round could bring."""
        return self.known + self.new >= len(self.text)


class Replay:
    """Requests that run at once, and the memory of those that have finished."""

    def __init__(self, megabytes: float, vocabulary: int, mixed: Mixed | None = None) -> None:
        capacity, self._mixed = int(megabytes * (1 << 18)), mixed
        self._texts = Texts(LONGEST_TEXT, vocabulary, "cpu", capacity)
        self._memory = Memory(capacity, LONGEST_TEXT, SEARCHED["cuda"]) if capacity else None

    def join(self, one: Request) -> None:
        """Write the prompt of a request."""
        self._texts.write(one.slot, 0, one.text[: one.prompt], comes=True)

    def round(self, running: Sequence[Request]) -> list[Round]:
        """Append the latest tokens of all requests, and verify the drafts that are looked up next."""
        if self._memory is not None:
            self._search(self._memory, running)
        tokens = torch.zeros(len(running), 1 + DRAFTS, dtype=torch.int32)
        for row, one in zip(tokens, running, strict=True):
            row[: one.new] = torch.from_numpy(one.text[one.known : one.known + one.new])
        slots, last, new = (
            torch.tensor(column)
            for column in zip(*((one.slot, one.known - 1, one.new) for one in running), strict=True)
        )
        told = self._texts.follow(slots.int(), last, tokens.flatten(), new)
        return [
            self._verified(one, drafts, Lookup(*row))
            for one, drafts, row in zip(running, self._texts.drafts(slots, DRAFTS).numpy(), told.tolist(), strict=True)
        ]

    def finish(self, one: Request) -> None:
        """Keep the text of a request."""
        if self._memory is not None:
            self._memory.keep(None, one.text, one.prompt)

    def _search(self, memory: Memory, running: Sequence[Request]) -> None:
        for begin, new in memory.arrivals():
            self._texts.remember(begin, new)
        found = []
        for one in running:
            if one.version != memory.version:
                one.version, one.ranges = memory.version, memory.sources(None, one.marks)
            alike = [(other.slot, 0) for other in running if other is not one and other.marks[-1] == one.marks[-1]]
            found.append((alike[:SIBLINGS], one.ranges[: SOURCES - len(alike[:SIBLINGS])]))
        self._texts.search(found)

    def _verified(self, one: Request, drafts: Tokens, found: Lookup) -> Round:
        one.known, follows = one.known + one.new, one.text[one.known + one.new :][:DRAFTS]
        wrong = np.flatnonzero(drafts[: len(follows)] != follows)
        right = (int(wrong[0]) if len(wrong) else len(follows)) if found.now else 0
        if self._mixed is not None and one.accepted is not None:
            drafted = min(int(one.accepted[one.known - 1 - one.prompt]), len(follows))
            right = self._mixed.right(drafted, right, found.now)
        one.new = right + 1
        return Round(right, bool(found.next_remembered))


def played(texts: Sequence[Text], at_once: int, megabytes: float, mixed: Mixed | None = None) -> list[Round]:
    """Return the rounds of all texts."""
    replay = Replay(megabytes, 1 + max(int(one.tokens.max()) for one in texts), mixed)
    waiting, slots, running, found = iter(texts), list(range(SLOTS)), list[Request](), list[Round]()
    while True:
        for done in [one for one in running if one.done]:
            running.remove(done)
            slots.append(done.slot)
            replay.finish(done)
        while len(running) < at_once and (one := next(waiting, None)):
            running.append(Request(one, slots.pop()))
            replay.join(running[-1])
        if not running:
            return found
        if live := [one for one in running if not one.done]:  # an answer may have one token
            found += replay.round(live)


def recorded(paths: Sequence[Path]) -> dict[str, list[Text]]:
    """Return the texts of files by source; those of several files with the same prompts take turns.

    Raises ValueError for other prompts.
    """
    each = [_recorded(path) for path in paths]
    if len({tuple(one.prompt for _, one in texts) for texts in each}) > 1:
        raise ValueError(f"{', '.join(map(str, paths))}: expected answers to the same prompts in each")
    found = defaultdict(list)
    for alike in zip(*each, strict=True):
        for name, text in alike:
            found[name].append(text)
    return found


def _recorded(path: Path) -> list[tuple[str, Text]]:
    with np.load(path) as file:
        prompts = file["prompt"].tolist()
        texts = np.split(file["tokens"].astype(np.int64), np.cumsum(file["prompt"] + file["output"])[:-1])
        accepted: Sequence[npt.NDArray[np.uint8] | None] = [None] * len(texts)
        if "accepted" in file.files:
            accepted = np.split(file["accepted"], np.cumsum(file["output"])[:-1])
        names = file["source"].tolist() if "source" in file.files else ["all"] * len(texts)
    return [(str(name), Text(*of)) for name, *of in zip(names, texts, prompts, accepted, strict=True)]


def kernel_seconds(requests: int, searched: int) -> float:
    """Return the median seconds of the kernels of a round on this GPU; each request searches *searched* tokens."""
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


def replayed(name: str, texts: Sequence[Text], given: argparse.Namespace) -> list[object]:
    """Return the row of a source, and print it: tokens a round of each kind of round."""
    tokens = sum(len(one.tokens) - one.prompt - 1 for one in texts)
    own, both = (played(texts, given.at_once, megabytes) for megabytes in (0, given.mb))
    share = sum(one.right for one in both if one.remembered) / tokens
    row: list[object] = [name, len(texts), tokens / len(own), tokens / len(both), share]
    print(
        f"{name}, {len(texts)} requests, {given.at_once} at once: {tokens / len(own):.3f} tokens a round by the own "
        f"text, {tokens / len(both):.3f} with memory ({len(own) / len(both):.3f}), {share:.1%} from it"
    )
    if given.steps:
        alone = sum(len(rounds(one.accepted[:-1], given.steps)) for one in texts if one.accepted is not None)
        mixed, better = (
            len(played(texts, given.at_once, given.mb, Mixed(given.steps, match))) for match in (given.match, None)
        )
        row += [tokens / alone, tokens / mixed, tokens / better]
        print(
            f"  {given.steps} drafts: {tokens / alone:.3f} by the model, {tokens / mixed:.3f} with lookups in their "
            f"place where {given.match} tokens match ({alone / mixed:.3f}), {tokens / better:.3f} by the better of "
            f"both ({alone / better:.3f})"
        )
    return row


def main(argv: Sequence[str]) -> int:
    """Replay files, or time the kernel, and print one row per source or batch size."""
    given = parser().parse_args(argv)
    if given.kernel == bool(given.files):
        parser().error("expected either files or --kernel")
    if given.kernel:
        columns, rows = ["requests", "own_text_us", "with_memory_us"], list[list[object]]()
        for requests in (one for one in (1, 4, 8, 16) if one <= SLOTS):
            alone, both = (1e6 * kernel_seconds(requests, searched) for searched in (0, SEARCHED["cuda"]))
            rows.append([requests, alone, both])
            print(f"{requests} requests: {alone:.1f} us a round by the own text, {both:.1f} us with a full memory")
    else:
        columns = ["source", "requests", "own_text", "with_memory", "share_of_memory"]
        columns += ["drafted", "with_lookups", "better_of_both"] if given.steps else []
        try:
            found = recorded(given.files)
        except (OSError, ValueError) as error:
            parser().error(str(error))
        if given.steps and any(one.accepted is None for texts in found.values() for one in texts):
            parser().error("--steps: expected files with accepted drafts")
        rows = [replayed(name, texts, given) for name, texts in found.items()]
    if given.json:
        about = "none: times of a kernel" if given.kernel else "recorded text, token by token"
        report = Report(given.json, "lookup_memory", argv, acceptance=about)
        report.add(columns=columns, rows=rows)
        report.write()
    return 0


def parser() -> argparse.ArgumentParser:
    found = command_parser("lookup_memory", __doc__)
    found.add_argument("files", type=Path, nargs="*", metavar="FILE", help="recorded texts")
    found.add_argument("--kernel", action="store_true", help="time the kernel on a GPU instead")
    found.add_argument("--at-once", type=int, default=1, help="requests that run side by side (default: 1)")
    found.add_argument("--mb", type=float, default=64.0, help="size of the memory (default: 64)")
    found.add_argument(
        "--steps", type=count, default=0, help="drafts of a model, beside which lookups run (default: none)"
    )
    found.add_argument("--match", type=int, default=5, help="tokens that match where a lookup is used (default: 5)")
    found.add_argument("--json", type=Path)
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
