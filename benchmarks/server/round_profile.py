"""What a decode round is made of: device time by kernel, idle device time, per round, of one or more running servers.

    python -m benchmarks.server.round_profile --server none=http://HOST:PORT --server zero=http://HOST:PORT \\
        --batches 1,8,64 --steps 0 --output RESULT.json

Each server decodes a batch of random prompts while SGLang's own profiler (/start_profile) records some rounds; the
trace is read here, so servers and this command share a file system. An adaptive server holds --steps meanwhile. The
profiler slows a round down, the host's side of it most: read sums of device time, not rates. With --activity CPU the
operators on the host are counted, which a machine without a GPU has as well.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.server.results import origin
from sglang_adaptive.client import Client, RequestError

PROMPT_TOKENS, VOCABULARY = 128, 200
DEVICE, HOST = ("kernel", "gpu_memcpy", "gpu_memset"), ("cpu_op",)
SHOWN = 14
TRACE_SECONDS = 120.0


def main() -> int:
    """Profile every server at every batch size, print the tables, and write them."""
    options = _parser().parse_args()
    rows = []
    for name, url in options.server:
        client = Client.from_url(url)
        held = _hold(client, options.steps)
        for batch in options.batches:
            events = profile(client, batch, options.rounds, options.activity, _kept(options.keep, name, batch))
            kinds = HOST if options.activity == "CPU" else DEVICE
            found = tally(events, options.rounds, kinds)
            if options.mark is not None:
                found["between_marks_us"] = between_marks(events, options.mark, kinds)
            rows.append({"server": name, "held_steps": held, "batch_size": batch, **found})
            print(_table(rows[-1]), flush=True)
        if held is not None:
            client.force_steps(None)
    about = origin(sys.argv[1:], "benchmarks.server.round_profile")
    options.output.write_text(json.dumps({"activity": options.activity, "provenance": about, "rows": rows}, indent=1))
    return 0


def profile(
    client: Client, batch: int, rounds: int, activity: str = "GPU", keep: Path | None = None
) -> list[dict[str, Any]]:
    """Decode *batch* requests and return the trace's events of *rounds* of them; the trace goes to *keep*.

    Raises RuntimeError when no trace appears.
    """
    draw = random.Random(batch)
    prompts = [[draw.randrange(VOCABULARY) for _ in range(PROMPT_TOKENS)] for _ in range(batch)]
    # The longest accepts several tokens a round, and rounds before and after the recorded ones are needed as well.
    load = threading.Thread(target=client.generate, args=(prompts, 20 * rounds), kwargs={"ignore_eos": True})
    with tempfile.TemporaryDirectory() as folder:
        load.start()
        time.sleep(1.0)
        ask = {"output_dir": folder, "num_steps": rounds, "activities": activity.split("+"), "with_stack": False}
        client.post("/start_profile", ask)
        load.join()
        trace = _trace(Path(folder))
        if keep is not None:
            shutil.copy(trace, keep)
        return _events(trace)


def tally(events: Iterable[dict[str, Any]], rounds: int, kinds: tuple[str, ...]) -> dict[str, Any]:
    """Return busy and idle microseconds a round, and those of each name, of a trace's events of *kinds*."""
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
            name: {"us": total / rounds, "launches": counts[name] / rounds} for name, total in by_name.most_common()
        },
    }


def between_marks(events: Iterable[dict[str, Any]], mark: str, kinds: tuple[str, ...]) -> list[float]:
    """Return the microseconds from the end of each event of *kinds* with *mark* in its name to the end of the next."""
    ends = sorted(
        float(e["ts"]) + float(e.get("dur", 0.0)) for e in events if e.get("cat") in kinds and mark in str(e["name"])
    )
    return [round(later - end, 1) for end, later in pairwise(ends)]


def _events(path: Path) -> list[dict[str, Any]]:
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8", errors="replace") as file:
        found: list[dict[str, Any]] = json.load(file)["traceEvents"]
    return found


def _trace(folder: Path) -> Path:
    """Return the finished trace in *folder*; the first rank's where there are several."""
    deadline, size = time.monotonic() + TRACE_SECONDS, -1
    while time.monotonic() < deadline:
        found = sorted(path for path in folder.rglob("*.json*") if path.stat().st_size)
        if found and found[0].stat().st_size == size:
            return found[0]
        size = found[0].stat().st_size if found else -1
        time.sleep(1.0)
    raise RuntimeError(f"no trace within {TRACE_SECONDS:.0f} s; does the server share this machine's files?")


def _kept(folder: Path | None, name: str, batch: int) -> Path | None:
    if folder is None:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{name}-{batch}.trace.json.gz"


def _hold(client: Client, steps: int) -> int | None:
    try:
        return steps if client.force_steps(steps) == [True] else None
    except RequestError:
        return None  # a stock server


def _table(row: dict[str, Any]) -> str:
    at = "" if row["held_steps"] is None else f", held at {row['held_steps']} steps"
    round_is = f"a round is {row['wall_us']:.0f} us, {row['busy_us']:.0f} busy"
    head = f"{row['server']}{at}, batch {row['batch_size']}: {round_is}"
    lines = [f"{head}, {row['launches']:.1f} launches"]
    for name, part in list(row["by_name"].items())[:SHOWN]:
        lines.append(f"  {part['us']:9.1f} us {part['launches']:6.1f}x  {name[:90]}")
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.server.round_profile",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--server", action="append", required=True, metavar="NAME=URL", type=_named)
    parser.add_argument("--batches", type=lambda text: [int(part) for part in text.split(",")], default=[1, 8, 64])
    parser.add_argument("--steps", type=int, default=0, help="depth that adaptive servers hold (default: 0)")
    parser.add_argument("--rounds", type=int, default=32)
    parser.add_argument("--activity", choices=("GPU", "CPU", "CPU+GPU"), default="GPU")
    parser.add_argument("--mark", metavar="NAME", help="a part of the name of a kernel that ends each pass")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="also keep the traces here, for a trace viewer")
    parser.add_argument("--output", type=Path, required=True)
    return parser


def _named(text: str) -> tuple[str, str]:
    name, equals, url = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"got {text!r}; expected NAME=URL")
    return name, url


if __name__ == "__main__":
    raise SystemExit(main())
