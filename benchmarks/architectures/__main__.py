"""python -m benchmarks.architectures --output DIR [family ...]: run the families, N at a time, within a budget."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.architectures.examine import Record, examine
from benchmarks.architectures.families import FAMILIES, Family, named
from benchmarks.architectures.rehearsal import REHEARSAL
from benchmarks.architectures.servers import stop_all
from benchmarks.architectures.verdicts import DIFFERENT, EQUAL, TIE, of_family
from sglang_adaptive.provenance import git_commit, versions

LONGEST = 170.0
STOPPING = 10.0
"""Seconds kept back at the end of the budget, to end servers and write."""


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return 0 when no family had wrong tokens, else 1; 2 for an unknown family."""
    options = _parser().parse_args(arguments)
    if options.list:
        for family in FAMILIES:
            print(f"{family.name:20} {family.algorithm:7} {family.draft_kind:14} {family.models}")
        return 0
    try:
        families = REHEARSAL if options.host == "cpu" else named(options.families)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, _ended)
    return Run(options).all(families)


def _ended(number: int, frame: object) -> None:
    """End with the servers: they are in process groups of their own. What was measured is written."""
    stop_all()
    os._exit(128 + number)


class Run:
    """All families of one command, several at a time; each record is a file of the output folder."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._folder: Path = options.output.resolve()
        self._folder.mkdir(parents=True, exist_ok=True)
        self._end = time.monotonic() + options.budget - STOPPING
        self._options = options
        self._lock = threading.Lock()
        self._about = {
            "date": datetime.now(UTC).strftime("%Y-%m-%d"),
            "gpu": gpu(options.host),
            "commit": git_commit(),
            "versions": versions("sglang", "torch", "triton", "transformers", "sgl-kernel", "flashinfer-python"),
        }

    def all(self, families: tuple[Family, ...]) -> int:
        """Run *families* and return 1 if one had wrong tokens."""
        with ThreadPoolExecutor(self._options.at_once) as pool:
            records = list(pool.map(self._one, families))
        verdicts = [of_family(record) for record in records]
        print("\n".join(f"{record['family']:20} {verdict}" for record, verdict in zip(records, verdicts, strict=True)))
        return int("wrong tokens" in verdicts)

    def _one(self, family: Family) -> Record:
        left = min(self._options.each, self._end - time.monotonic())
        if left < 30:
            self._say(f"{family.name}: not begun, the budget is spent")
            return {"family": family.name}
        self._say(f"{family.name}: begins, {left:.0f} s at most")
        try:
            record = examine(family, self._folder, left, self._keep, cpu=self._options.host == "cpu")
        except Exception as error:  # a family's fault must not end the others
            self._say(f"{family.name}: {type(error).__name__}: {error}")
            return {"family": family.name, "error": repr(error)}
        self._say(told(record))
        return record

    def _keep(self, record: Record) -> None:
        path = self._folder / f"{record['family']}.json"
        text = json.dumps({**self._about, **record, "verdict": of_family(record)}, indent=1)
        with self._lock:
            scratch = path.with_suffix(".part")
            scratch.write_text(text + "\n", encoding="utf-8")
            scratch.replace(path)

    def _say(self, line: str) -> None:
        with self._lock:
            print(f"{datetime.now(UTC):%H:%M:%S} {line}", flush=True)


def told(record: Record) -> str:
    """Return a line that sums up *record*."""
    runs = record["runs"]
    counts = ", ".join(f"{sum(run[verdict] for run in runs)} {verdict}" for verdict in (EQUAL, TIE, DIFFERENT))
    accepted = sum(run["accepted"] for run in runs)
    line = f"{record['family']}: {of_family(record)}; {counts}; {accepted} drafts accepted; {record['seconds']} s"
    if record.get("verify_budget"):
        line += f"; {record['verify_budget']['packed_rounds']} rounds of unequal drafts"
    return f"{line}; {record['error']}" if record["error"] else line


def gpu(host: str) -> str:
    """Return the device's name, "CPU" for a rehearsal."""
    if host == "cpu":
        return "CPU"
    import subprocess

    asked = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    found = subprocess.run(asked, capture_output=True, text=True, check=False)
    return (found.stdout.splitlines() or ["unknown"])[0].strip()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.architectures", description=__doc__)
    add: Any = parser.add_argument
    add("families", nargs="*", help="names, as --list shows them; all by default, the most used ones first")
    add("--output", type=Path, default=Path("architectures"), help="folder of records, logs and models")
    add("--at-once", type=int, default=6, help="families at a time, of two servers each (default 6)")
    add("--budget", type=float, default=420, help="seconds for everything (default 420)")
    add("--each", type=float, default=LONGEST, help=f"seconds for a family (default {LONGEST:.0f})")
    add("--host", choices=("gpu", "cpu"), default="gpu", help="cpu rehearses with tiny models on the CPU engine")
    add("--list", action="store_true", help="print the families and end")
    return parser


if __name__ == "__main__":
    sys.exit(main())
