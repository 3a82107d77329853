"""The report of a run as JSON, what it needs to be run again, and the targets of the drawn suites."""

from __future__ import annotations

import datetime
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sglang_adaptive.lab.simulate.scenes import SUITES, Setting
from sglang_adaptive.lab.simulate.score import BUCKET, Scores, TraceScore
from sglang_adaptive.provenance import command_line, cpu_model, git_commit, versions

FORMAT = 1
Played = tuple[dict[str, Any], str]
"""What a run of the command found: the report as JSON builtins, and as printed."""


def about(argv: list[str], left_out: Sequence[str] = ()) -> dict[str, Any]:
    """Return command, code and machine as JSON builtins, and a sentence on each policy left out, if any."""
    found: dict[str, Any] = {
        "command": command_line("simulate", argv),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "commit": git_commit(),
        "versions": versions("sglang", "numpy"),
        "cpu": cpu_model(),
    }
    return found | {"left_out": list(left_out)} if left_out else found


def drawn(
    words: list[str], profile: str, setting: Setting, results: Mapping[str, Scores], left_out: Sequence[str]
) -> dict[str, Any]:
    """Return the report of the drawn suites as JSON builtins; shares are rounded to 5 digits.

    *profile* names the cost profile, of which 16 digits of a hash say more, regardless of its file.
    """
    cells = [[batch, steps, round(value, 9)] for (batch, steps), value in sorted(setting.cost.cells().items())]
    source = {
        "seed": setting.seed,
        "traces": setting.traces,
        "rounds": setting.rounds,
        "profile": profile,
        "profile_sha256": hashlib.sha256(json.dumps(cells).encode()).hexdigest()[:16],
        "note": "Acceptance, arrivals and clock noise are simulated; round times come from the profile.",
    }
    return {
        "format": FORMAT,
        "provenance": about(words, left_out) | source,
        "definition": (
            "share = seconds that the oracle needs for the same expected tokens in the same states / seconds "
            "taken, both as expected values; drawn = the same from sampled tokens and noisy seconds; plain_ratio = "
            "expected tokens/s / the oracle's, which can exceed 1 where loads differ"
        ),
        "targets": outcomes(results),
        "suites": {
            name: {
                "title": SUITES[name].title,
                "traces": len(SUITES[name].indices(setting)),
                "rounds": setting.rounds,
                "policies": {policy: _policy(scores) for policy, scores in found.items()},
            }
            for name, found in results.items()
        },
    }


def as_json(report: Mapping[str, Any]) -> str:
    """Return a report as file content: indented, with each list of numbers and each of its cells on one line."""
    rest = json.dumps({key: value for key, value in report.items() if key != "cells"}, indent=1)
    text = re.sub(r"\[([-+\d.e,\s]+)\]", lambda found: "[" + " ".join(found[1].split()) + "]", rest)
    if "cells" in report:
        cells = ",\n  ".join(map(json.dumps, report["cells"]))
        text = f'{text[:-2]},\n "cells": [\n  {cells}\n ]\n}}'
    return text + "\n"


def _policy(scores: Sequence[TraceScore]) -> dict[str, Any]:
    shares = [score.share for score in scores]
    recoveries = [rounds for score in scores for rounds in score.recoveries]
    found: dict[str, Any] = {
        "mean": round(float(np.mean(shares)), 5),
        "worst": round(min(shares), 5),
        "plain_ratio_mean": round(float(np.mean([score.plain_ratio for score in scores])), 5),
        "drawn_mean": round(float(np.mean([score.drawn_share for score in scores])), 5),
        "worst_500_rounds_against_zero_steps": round(min(score.zero_window for score in scores), 5),
        "switches_per_200_rounds": round(float(np.mean([score.switches for score in scores])), 4),
        "switches_per_200_rounds_worst": round(max(score.switches for score in scores), 4),
        f"share_by_{BUCKET}_rounds": [round(float(x), 4) for x in np.mean([s.curve for s in scores], axis=0)],
        "share_by_trace": [round(share, 5) for share in shares],
    }
    if recoveries:
        found["recovery_rounds"] = {
            "median": float(np.median(recoveries)),
            "p95": round(float(np.quantile(recoveries, 0.95)), 1),
            "slowest": max(recoveries),
        }
    return found


# Targets for the throughput policy, and whether it met them.


JUDGED = "throughput"
"""The policy that targets are for."""
STARTED = 500
"""A start without a profile must reach its speed within this many rounds."""

MEAN, WORST = "share of oracle, mean", "share of oracle, worst trace"
ZERO, RECOVERY = "against zero steps, worst 500 rounds", "rounds until within 5%, slowest"
START = "share of oracle, rounds 450 to 500"

SHARES: Mapping[str, tuple[float, float]] = {
    "stationary": (0.99, 0.97),
    "acceptance": (0.985, 0.96),
    "load": (0.985, 0.96),
    "both": (0.985, 0.96),
    "profile-5": (0.98, 0.95),
    "profile-15": (0.97, 0.95),
    "drift": (0.97, 0.94),
    "bad-draft": (0.97, 0.94),
    "heterogeneous": (0.97, 0.94),
    "noise-gpu": (0.985, 0.97),
    "noise-host": (0.98, 0.96),
    "noise-busy": (0.96, 0.88),
}
"""Lower bounds of MEAN and WORST by suite."""

TARGETS: Sequence[tuple[str, str, float]] = (
    *((suite, figure, pair[at]) for suite, pair in SHARES.items() for at, figure in enumerate((MEAN, WORST))),
    ("step-change", RECOVERY, 30),
    ("cold-start", START, 0.95),
    ("*", ZERO, 0.99),
)
"""Suite, figure and bound; ``*`` stands for the worst of all suites that ran."""


def figures(scores: Sequence[TraceScore]) -> dict[str, float]:
    """Return every figure of a suite."""
    curve = np.mean([score.curve for score in scores], axis=0)
    return {
        MEAN: float(np.mean([score.share for score in scores])),
        WORST: min(score.share for score in scores),
        ZERO: min(score.zero_window for score in scores),
        RECOVERY: max((float(rounds) for score in scores for rounds in score.recoveries), default=0.0),
        START: float(curve[min(STARTED // BUCKET, len(curve)) - 1]),
    }


def outcomes(results: Mapping[str, Scores]) -> list[dict[str, Any]]:
    """Return every target whose suite and policy ran, and whether it was met, as JSON builtins."""
    ran = {name: figures(scores[JUDGED]) for name, scores in results.items() if JUDGED in scores}
    found = []
    for suite, figure, bound in TARGETS:
        of_suites = [of[figure] for name, of in ran.items() if suite in (name, "*")]
        if of_suites:
            most = figure == RECOVERY
            measured = max(of_suites) if most else min(of_suites)
            met = measured <= bound if most else measured >= bound
            found.append({"suite": suite, "figure": figure, "measured": round(measured, 5), "bound": bound})
            found[-1] |= {"at": "most" if most else "least", "met": met}
    return found
