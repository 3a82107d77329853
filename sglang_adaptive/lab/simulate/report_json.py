"""The report as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sglang_adaptive.lab.simulate.results import BUCKET, SuiteResult, TraceScore
from sglang_adaptive.lab.simulate.targets import Outcome

FORMAT = 1


def json_report(
    results: Mapping[str, SuiteResult], judged: Sequence[Outcome], source: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the whole report as JSON builtins; shares are rounded to 5 digits."""
    return {
        "format": FORMAT,
        "provenance": dict(source),
        "definition": (
            "share = seconds that the oracle needs for the same expected tokens in the same states / seconds "
            "taken, both in expectation; drawn is the same from drawn tokens and noisy seconds; plain_ratio is "
            "expected tokens/s over the oracle's, which can pass 1 where loads differ"
        ),
        "targets": [_outcome(outcome) for outcome in judged],
        "suites": {name: _suite(result) for name, result in results.items()},
    }


def as_json(report: Mapping[str, Any]) -> str:
    """Return the report as a file holds it: indented, a list of numbers on one line."""
    text = json.dumps(report, indent=1)
    return re.sub(r"\[([-+\d.e,\s]+)\]", lambda found: "[" + " ".join(found[1].split()) + "]", text) + "\n"


def _outcome(outcome: Outcome) -> dict[str, Any]:
    return {
        "suite": outcome.target.suite,
        "figure": outcome.title,
        "bound": outcome.target.bound,
        "at": "most" if outcome.ceiling else "least",
        "measured": round(outcome.measured, 5),
        "met": bool(outcome.met),
    }


def _suite(result: SuiteResult) -> dict[str, Any]:
    found: dict[str, Any] = {
        "title": result.suite.title,
        "traces": len(result.traces),
        "rounds": result.setting.rounds,
        "policies": {name: _policy(scores) for name, scores in result.scores.items()},
    }
    if result.own_depth_gain:
        found["own_depth_oracle"] = {
            "mean_gain": round(float(np.mean(result.own_depth_gain)), 5),
            "worst_gain": round(min(result.own_depth_gain), 5),
            "best_gain": round(max(result.own_depth_gain), 5),
            "verify_fit_worst_error": round(result.own_depth_fit_error or 0.0, 5),
        }
    return found


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
