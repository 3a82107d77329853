"""Break a decode round down into device time by kernel, idle device time, or host time by operator.

    python -m benchmarks.host_time --server none=http://HOST:PORT --server zero=http://HOST:PORT \\
        --batches 1,8,64 --steps 0 --output RESULT.json

Each running server decodes a batch of random prompts while SGLang's own profiler (/start_profile) records some rounds.
This command reads the trace, so it must share a file system with the servers. An adaptive server holds --steps
meanwhile. The profiler slows rounds down, mostly on the host, so use the sums of device time, not the rates. --activity
CPU measures the operators on the host and also works without a GPU. For the host time of this package's own functions,
use the phase host-time of benchmarks.served.
"""

from __future__ import annotations

import argparse
import gzip
import json
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.harness.load import Batch
from benchmarks.harness.results import Report, command_parser
from benchmarks.harness.start import ints, named
from sglang_adaptive.client import Client, RequestError

Events = list[dict[str, Any]]
DEVICE, HOST = ("kernel", "gpu_memcpy", "gpu_memset"), ("cpu_op",)
SHOWN = 14
LEAST_SHARE = 0.005
"""Share of the busy time: names with less are left out."""
TRACE_SECONDS = 120.0


def main(argv: Sequence[str]) -> int:
    """Profile every server at every batch size, print the tables, and write them; 1 if one does not answer."""
    given = parser().parse_args(argv)
    report = Report(given.output, "host_time", argv, activity=given.activity, rows=[])
    for name, url in given.server:
        try:
            _measure(name, Client.from_url(url), given, report)
        except (OSError, RequestError, RuntimeError) as problem:
            print(f"benchmarks.host_time: error: {name}, {url}: {problem}", file=sys.stderr)
            return 1
    return 0


def _measure(name: str, client: Client, given: argparse.Namespace, report: Report) -> None:
    kinds = HOST if given.activity == "CPU" else DEVICE
    held = _hold(client, given.steps)
    for batch in given.batches:
        keep = None if given.keep is None else given.keep / f"{name}-{batch}.trace.json.gz"
        events = profile(client, batch, given.rounds, given.activity, keep)
        row = {"server": name, "held_steps": held, "batch_size": batch, **tally(events, given.rounds, kinds)}
        if given.mark is not None:
            row["between_marks_us"] = between_marks(events, given.mark, kinds)
        report.content["rows"].append(row)
        report.write()
        print(_table(row), flush=True)
    if held is not None:
        client.force_steps(None)


def profile(client: Client, batch: int, rounds: int, activity: str, keep: Path | None = None) -> Events:
    """Decode *batch* requests and return the trace's events of *rounds* of them; the trace goes to *keep*.

    Raises RuntimeError when no trace appears.
    """
    # The longest accepts several tokens per round, and rounds before and after the recorded ones are needed as well.
    with tempfile.TemporaryDirectory() as folder, Batch(client, batch, 20 * rounds) as sent:
        time.sleep(1.0)
        ask = {"output_dir": folder, "num_steps": rounds, "activities": activity.split("+"), "with_stack": False}
        client.post("/start_profile", ask)
        sent.join()
        trace = _trace(Path(folder))
        if keep is not None:
            keep.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(trace, keep)
        opened = gzip.open if trace.suffix == ".gz" else open
        with opened(trace, "rt", encoding="utf-8", errors="replace") as file:
            found: Events = json.load(file)["traceEvents"]
    return found


def tally(events: Iterable[dict[str, Any]], rounds: int, kinds: tuple[str, ...]) -> dict[str, Any]:
    """Return busy and idle microseconds per round, and those of each name, from a trace's events of *kinds*."""
    spans = sorted((float(e["ts"]), float(e.get("dur", 0.0)), str(e["name"])) for e in events if e.get("cat") in kinds)
    if not spans:
        raise RuntimeError(f"the trace has no event of {', '.join(kinds)}")
    busy, end = 0.0, spans[0][0]
    by_name: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for begin, length, name in spans:
        busy += max(0.0, begin + length - max(begin, end))
        end = max(end, begin + length)
        by_name[name] += length
        counts[name] += 1
    wall = end - spans[0][0]
    return {
        "rounds": rounds,
        "wall_us": wall / rounds,
        "busy_us": busy / rounds,
        "idle_us": (wall - busy) / rounds,
        "launches": len(spans) / rounds,
        "by_name": {
            name: {"us": total / rounds, "launches": counts[name] / rounds}
            for name, total in by_name.most_common()
            if total >= LEAST_SHARE * busy
        },
    }


def between_marks(events: Iterable[dict[str, Any]], mark: str, kinds: tuple[str, ...]) -> list[float]:
    """Return the microseconds from the end of each event of *kinds* with *mark* in its name to the end of the next."""
    ends = sorted(
        float(e["ts"]) + float(e.get("dur", 0.0)) for e in events if e.get("cat") in kinds and mark in str(e["name"])
    )
    return [round(later - end, 1) for end, later in pairwise(ends)]


def _trace(folder: Path) -> Path:
    """Return the finished trace in *folder*; with several ranks, the first rank's."""
    deadline, size = time.monotonic() + TRACE_SECONDS, -1
    while time.monotonic() < deadline:
        found = sorted(path for path in folder.rglob("*.json*") if path.stat().st_size)
        if found and found[0].stat().st_size == size:
            return found[0]
        size = found[0].stat().st_size if found else -1
        time.sleep(1.0)
    raise RuntimeError(f"no trace within {TRACE_SECONDS:.0f} s; does the server share this machine's files?")


def _hold(client: Client, steps: int) -> int | None:
    try:
        return steps if client.force_steps(steps) == [True] else None
    except RequestError:
        return None  # a stock server


def _table(row: dict[str, Any]) -> str:
    at = "" if row["held_steps"] is None else f", held at {row['held_steps']} steps"
    round_is = f"{row['wall_us']:.0f} us per round, {row['busy_us']:.0f} us busy"
    head = f"{row['server']}{at}, batch {row['batch_size']}: {round_is}"
    lines = [f"{head}, {row['launches']:.1f} launches"]
    for name, part in list(row["by_name"].items())[:SHOWN]:
        lines.append(f"  {part['us']:9.1f} us {part['launches']:6.1f}x  {name[:90]}")
    return "\n".join(lines)


def parser() -> argparse.ArgumentParser:
    made = command_parser("host_time", __doc__)
    made.add_argument("--server", action="append", required=True, metavar="NAME=URL", type=named)
    made.add_argument("--batches", type=ints, default=[1, 8, 64])
    made.add_argument("--steps", type=int, default=0, help="depth for adaptive servers to hold (default: 0)")
    made.add_argument("--rounds", type=int, default=32)
    made.add_argument("--activity", choices=("GPU", "CPU", "CPU+GPU"), default="GPU")
    made.add_argument("--mark", metavar="NAME", help="part of the name of a kernel that ends each pass")
    made.add_argument("--keep", type=Path, metavar="FOLDER", help="also keep the traces here, for a trace viewer")
    made.add_argument("--output", type=Path, required=True)
    return made


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
