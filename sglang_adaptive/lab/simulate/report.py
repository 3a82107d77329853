"""The report of a run as JSON, and what it needs to be run again."""

from __future__ import annotations

import datetime
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sglang_adaptive.lab.simulate.results import BUCKET, SuiteResult, TraceScore
from sglang_adaptive.lab.simulate.scenes import Setting
from sglang_adaptive.lab.simulate.targets import Gate
from sglang_adaptive.provenance import command_line, cpu_model, git_commit, versions

FORMAT = 1


@dataclass(frozen=True)
class Played:
    """What a run of the command found."""

    report: dict[str, Any]
    """JSON builtins."""
    text: str
    """The report as printed."""


def provenance(argv: list[str], profile: str, setting: Setting, left_out: Sequence[str]) -> dict[str, Any]:
    """Return command, code, machine and inputs as JSON builtins; *profile* names the cost profile."""
    return about(argv, left_out) | {
        "seed": setting.seed,
        "traces": setting.traces,
        "rounds": setting.rounds,
        "profile": profile,
        "profile_sha256": _digest(setting),
        "note": "Acceptance, arrivals and clock noise are simulated; round times come from the profile.",
    }


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


def _digest(setting: Setting) -> str:
    """Return 16 hexadecimal digits of the cost cells, regardless of their source file."""
    cells = [[batch, steps, round(value, 9)] for (batch, steps), value in sorted(setting.cost.cells().items())]
    return hashlib.sha256(json.dumps(cells).encode()).hexdigest()[:16]


def json_report(
    results: Mapping[str, SuiteResult], judged: Sequence[Gate], source: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the whole report as JSON builtins; shares are rounded to 5 digits."""
    return {
        "format": FORMAT,
        "provenance": dict(source),
        "definition": (
            "share = seconds that the oracle needs for the same expected tokens in the same states / seconds "
            "taken, both as expected values; drawn = the same from sampled tokens and noisy seconds; plain_ratio = "
            "expected tokens/s / the oracle's, which can exceed 1 where loads differ"
        ),
        "targets": [gate.as_json() for gate in judged],
        "suites": {name: _suite(result) for name, result in results.items()},
    }


def as_json(report: Mapping[str, Any]) -> str:
    """Return a report as file content: indented, with each list of numbers and each of its cells on one line."""
    rest = json.dumps({key: value for key, value in report.items() if key != "cells"}, indent=1)
    text = re.sub(r"\[([-+\d.e,\s]+)\]", lambda found: "[" + " ".join(found[1].split()) + "]", rest)
    if "cells" in report:
        cells = ",\n  ".join(map(json.dumps, report["cells"]))
        text = f'{text[:-2]},\n "cells": [\n  {cells}\n ]\n}}'
    return text + "\n"


def _suite(result: SuiteResult) -> dict[str, Any]:
    return {
        "title": result.suite.title,
        "traces": len(result.suite.indices(result.setting)),
        "rounds": result.setting.rounds,
        "policies": {name: _policy(scores) for name, scores in result.scores.items()},
    }


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
