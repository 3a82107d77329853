"""Simulate ranks of attention DP that agree on one depth a round: `python -m benchmarks.attention_dp`."""

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

from benchmarks.attention_dp.measure import STARTS, cells
from sglang_adaptive.policy.profile.shipped import shipped_config
from sglang_adaptive.provenance import cpu_model, git_commit, versions
from sglang_adaptive.simulate.profile_file import load_cost
from sglang_adaptive.simulate.real.texts import Texts
from sglang_adaptive.traces import read

FOLDER = Path(__file__).parents[1]
TRACE = FOLDER / "traces" / "smollm2-greedy.npz"
PROFILES = ("h200-qwen3-30b-a3b-eagle3-fa3", "h200-llama31-8b-eagle3-fa3")


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attention_dp", description=__doc__)
    parser.add_argument("profiles", nargs="*", metavar="PROFILE", help=f"of configs/profiles/; {', '.join(PROFILES)}")
    parser.add_argument("--ranks", default="8,16,64", metavar="N,N,...")
    parser.add_argument("--rounds", type=int, default=1000, metavar="N", help="length of a run")
    parser.add_argument("--scene", default="", metavar="WORDS", help="play scenes alone whose names have these words")
    parser.add_argument(
        "--probes", choices=STARTS, help="the vote alone, with and without, beginning with this profile"
    )
    parser.add_argument("--out", type=Path, default=FOLDER / "results" / "attention_dp", metavar="FOLDER")
    options = parser.parse_args(words)
    options.out.mkdir(parents=True, exist_ok=True)
    whole = read(TRACE)
    for number, profile in enumerate(options.profiles or PROFILES):
        name, cost = load_cost(str(shipped_config(f"profiles/{profile}.json")))
        for text, trace in ((TRACE.stem, whole), (f"{TRACE.stem}-without-repetitions", whole.without_repetitions())):
            started, texts = time.monotonic(), Texts.of(trace)
            found = [
                cell
                for ranks in map(int, options.ranks.split(","))
                for cell in cells(texts, cost, ranks, options.rounds, number, options.scene, options.probes)
            ]
            file = options.out / f"{'-'.join([name, text, *options.scene.split()])}.json"
            report = {**_about(words), "profile": name, "trace": text, "cells": found}
            file.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
            print(f"{time.monotonic() - started:.0f} s  wrote {file.name}", file=sys.stderr, flush=True)
    return 0


def _about(words: list[str]) -> dict[str, Any]:
    return {
        "command": shlex.join(["python", "-m", "benchmarks.attention_dp", *(Path(word).name for word in words)]),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "commit": git_commit(),
        "versions": versions("numpy"),
        "cpu": cpu_model(),
        "note": "Simulated. Acceptance is replayed from a trace; round times were measured without attention DP, "
        "and a round of all ranks is taken to cost what one of the largest batch does. Prefills cost nothing.",
    }


if __name__ == "__main__":
    raise SystemExit(main())
