"""Is a verify budget worth it? `python -m benchmarks.verify_budget [TRACE.npz ...] [--out FOLDER]` says."""

from __future__ import annotations

import argparse
import datetime
import json
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.verify_budget.measure import cells
from benchmarks.verify_budget.prices import Prices, fit, read_extra
from benchmarks.verify_budget.tables import markdown
from sglang_adaptive.policy.profile.shipped import shipped_config
from sglang_adaptive.provenance import cpu_model, git_commit, versions
from sglang_adaptive.simulate.profile_file import load_cost
from sglang_adaptive.traces import Trace, TraceError, read

FOLDER = Path(__file__).parents[1]
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
DEAR, DRAFT_SHARE = ", dear drafts", 0.25
"""The profiles once more, with a drafted token at a quarter of a verified one; by their sizes it is a twentieth."""

MEASURED = ", measured drafts and packing"
GPU_COST = FOLDER / "results" / "verify_budget" / "gpu"
"""What gpu_cost.py found. A profile comes once more with the file whose name its own begins with."""

REPEATED = 0.02
"""Share of the positions from which on exact repetitions are worth a second run without them."""


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(prog="python -m benchmarks.verify_budget", description=__doc__)
    parser.add_argument("traces", nargs="*", type=Path, metavar="TRACE.npz", help="default: SmolLM2's that are shipped")
    parser.add_argument("--batches", default=",".join(map(str, BATCHES)), metavar="N,N,...")
    parser.add_argument("--out", type=Path, default=FOLDER / "results" / "verify_budget", metavar="FOLDER")
    options = parser.parse_args(words)
    profiles = _profiles()
    started = time.monotonic()
    options.out.mkdir(parents=True, exist_ok=True)
    for path in options.traces or sorted((FOLDER / "traces").glob("smollm2-*.npz")):
        try:
            trace = read(path)
        except TraceError as error:
            parser.exit(2, f"{parser.prog}: {error}\n")
        for name, texts in _with_and_without_loops(path.stem, trace).items():
            found = list(cells(texts, profiles, tuple(int(word) for word in options.batches.split(","))))
            report = {**_about(words, profiles), "trace": name, "cells": found}
            file = options.out / f"{name}.json"
            file.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
            print(f"{time.monotonic() - started:.0f} s  wrote {file.name}", file=sys.stderr)
    reports = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(options.out.glob("*.json"))]
    print("\n".join(markdown(reports)))
    return 0


def _profiles() -> dict[str, Prices]:
    loaded = dict(load_cost(str(path)) for path in sorted(shipped_config("profiles").glob("*.json")))
    cheap = {name: fit(cost.cells()) for name, cost in loaded.items()}
    dear = {name + DEAR: fit(cost.cells(), DRAFT_SHARE) for name, cost in loaded.items()}
    extras = {path.stem: read_extra(path) for path in sorted(GPU_COST.glob("*.json"))}
    own = {
        name + MEASURED: fit(cost.cells(), extra=extra)
        for shape, extra in extras.items()
        for name, cost in loaded.items()
        if name.startswith(shape)
    }
    return cheap | dear | own


def _with_and_without_loops(name: str, trace: Trace) -> dict[str, Trace]:
    if trace.loop_start.sum() >= (1.0 - REPEATED) * trace.length.sum():
        return {name: trace}
    return {name: trace, f"{name}-without-repetitions": trace.without_repetitions()}


def _about(words: list[str], profiles: dict[str, Prices]) -> dict[str, Any]:
    return {
        "command": shlex.join(["python", "-m", "benchmarks.verify_budget", *(Path(word).name for word in words)]),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "commit": git_commit(),
        "versions": versions("numpy", "scipy"),
        "cpu": cpu_model(),
        "note": "Acceptance and confidence are replayed from a trace; round times were measured on a GPU; those of "
        f"ragged verifies are modelled, without what packing costs but in the profiles named {MEASURED[2:]}.",
        "fit": {
            name: {"worst_error_ms": 1000 * prices.worst_error, "worst_share": prices.worst_share}
            for name, prices in profiles.items()
        },
    }


if __name__ == "__main__":
    raise SystemExit(main())
