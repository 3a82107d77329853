"""Keep the rounds that a server recorded as a recording of noise, and describe the recordings that are kept.

    python -m benchmarks.noise [keep ROUNDS NAME [--first N] [--end N]]

``keep`` writes the rounds FIRST to END (default: all) of the file ROUNDS, which a server's ``"trace"`` names, to
``benchmarks/noise/NAME.rounds.gz``. Requests are numbered, because their random ids are most of a file. Without it,
the table of README.md is printed.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from sglang_adaptive.lab.simulate.rounds import NOISE, disturbances, read_rounds
from sglang_adaptive.runtime.round_trace import LOST, WHO

SPELL_ROUNDS = 50


def main(argv: Sequence[str]) -> int:
    """Keep a recording, or print the table."""
    given = parser().parse_args(argv)
    if given.command == "keep":
        with gzip.open(given.rounds, "rt") if given.rounds.suffix == ".gz" else given.rounds.open() as lines:
            kept = "".join(cut(lines, given.first, given.end))
        (NOISE / f"{given.name}.rounds.gz").write_bytes(gzip.compress(kept.encode(), mtime=0))
    else:
        print("\n".join(table()))
    return 0


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    found = argparse.ArgumentParser("benchmarks.noise", description=__doc__.split("\n", 1)[0])
    keep = found.add_subparsers(dest="command").add_parser("keep")
    keep.add_argument("rounds", type=Path)
    keep.add_argument("name", help="KIND-MODEL; kinds are those of sglang_adaptive.lab.simulate.rounds")
    keep.add_argument("--first", type=int, default=0)
    keep.add_argument("--end", type=int, default=sys.maxsize)
    return found


def cut(lines: Iterable[str], first: int, end: int) -> Iterator[str]:
    """Yield the lines of the rounds *first* to *end* of a round trace, with numbered requests."""
    lines = iter(lines)
    yield next(lines)
    numbers: dict[str, str] = {}
    count = itertools.count()
    who = ""
    for line in lines:
        mark, *rest = line.split()
        if mark == WHO:
            who = " ".join([WHO, *(numbers.setdefault(name, f"{len(numbers):x}") for name in rest)]) + "\n"
        elif mark != LOST and first <= next(count) < end:
            yield who + line
            who = ""


def table() -> Iterator[str]:
    """Yield the rows of README.md's table: what the disturbances of each recording are."""
    yield "| recording | rounds | timed | 1% | 5% | 25% | 50% | 75% | 95% | 99% | next to next | means of 50 rounds |"
    yield "|---|---|---|---|---|---|---|---|---|---|---|---|"
    for file in sorted(NOISE.glob("*.rounds.gz")):
        rounds = read_rounds(file)
        found = disturbances(rounds)
        quantiles = np.quantile(found, (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99))
        logs = np.log(found)
        spells = np.mean(found[: len(found) // SPELL_ROUNDS * SPELL_ROUNDS].reshape(-1, SPELL_ROUNDS), axis=1)
        yield " | ".join(
            [
                f"| {file.name.partition('.')[0]}", f"{rounds.count:,}", f"{len(found):,}",
                *(f"{value:.2f}" for value in quantiles), f"{np.corrcoef(logs[:-1], logs[1:])[0, 1]:+.2f}",
                f"{spells.min():.2f} to {spells.max():.2f} |",
            ]
        )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
