"""The report of a run as aligned text and as JSON, and what it needs to be run again."""

from __future__ import annotations

import datetime
import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from sglang_adaptive.lab.simulate.results import BUCKET, SuiteResult, TraceScore
from sglang_adaptive.lab.simulate.scenes import Setting
from sglang_adaptive.lab.simulate.targets import Outcome
from sglang_adaptive.provenance import command_line, cpu_model, git_commit, versions


def provenance(argv: list[str], profile: str, setting: Setting) -> dict[str, Any]:
    """Return command, code, machine and inputs as JSON builtins; *profile* names the cost profile."""
    return about(argv) | {
        "seed": setting.seed,
        "traces": setting.traces,
        "rounds": setting.rounds,
        "profile": profile,
        "profile_sha256": _digest(setting),
        "note": "Acceptance, arrivals and clock noise are simulated; round times come from the profile.",
    }


def about(argv: list[str]) -> dict[str, Any]:
    """Return command, code and machine as JSON builtins."""
    return {
        "command": command_line("simulate", argv),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "commit": git_commit(),
        "versions": versions("sglang", "numpy"),
        "cpu": cpu_model(),
    }


def _digest(setting: Setting) -> str:
    """Return 16 hexadecimal digits of the cost cells, whatever file they came in."""
    cells = [[batch, steps, round(value, 9)] for (batch, steps), value in sorted(setting.cost.cells().items())]
    return hashlib.sha256(json.dumps(cells).encode()).hexdigest()[:16]


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Align *rows* under *head*: the first column to the left, the others to the right."""
    lines = [list(head), *(list(row) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def text_report(results: Mapping[str, SuiteResult], judged: Sequence[Outcome]) -> str:
    """Return every table: shares (mean, worst), behaviour, targets."""
    parts = [
        "Share of the oracle's throughput, mean over the traces\n" + _shares(results, SuiteResult.mean_share),
        "Share of the oracle's throughput, worst trace\n" + _shares(results, SuiteResult.worst_share),
        "Switches in 200 settled rounds / worst 500 rounds against zero steps\n" + _behaviour(results),
        *own_depth_notes(results),
    ]
    if judged:
        met = sum(outcome.met for outcome in judged)
        parts.append(f"Targets of the throughput policy: {met} of {len(judged)} met\n" + targets_table(judged))
    return "\n\n".join(parts)


def policies(results: Mapping[str, SuiteResult]) -> list[str]:
    """Return the contenders of the run, in order."""
    return list(next(iter(results.values())).scores)


def _shares(results: Mapping[str, SuiteResult], figure: Callable[[SuiteResult, str], float]) -> str:
    names = policies(results)
    rows = [[suite, *(f"{figure(result, name):.3f}" for name in names)] for suite, result in results.items()]
    return table(["suite", *names], rows)


def _behaviour(results: Mapping[str, SuiteResult]) -> str:
    names = [name for name in policies(results) if not name.startswith("static-") or name == "static-0"]
    rows = []
    for suite, result in results.items():
        cells = []
        for name in names:
            switches = float(np.mean([score.switches for score in result.scores[name]]))
            window = min(score.zero_window for score in result.scores[name])
            cells.append(f"{switches:.1f} / {window:.3f}")
        rows.append([suite, *cells])
    return table(["suite", *names], rows)


def own_depth_notes(results: Mapping[str, SuiteResult]) -> list[str]:
    """Return a sentence on the per-request oracle for each suite whose requests differ."""
    return [
        f"{result.suite.title.capitalize()}: an oracle that gives each request its own depth would reach "
        f"{np.mean(result.own_depth_gain):.3f} times the oracle that gives the batch one depth. Round times "
        "of such batches are modelled; the model repeats the profile's cells within "
        f"{100 * (result.own_depth_fit_error or 0):.1f}%"
        for result in results.values()
        if result.own_depth_gain
    ]


def targets_table(judged: Sequence[Outcome]) -> str:
    """Return target, measured figure and verdict, one a line."""
    rows = []
    for outcome in judged:
        bound = ("<= " if outcome.ceiling else ">= ") + f"{outcome.target.bound:g}"
        suite = "every suite" if outcome.target.suite == "*" else outcome.target.suite
        rows.append([suite, outcome.title, bound, figure(outcome.measured), "met" if outcome.met else "MISSED"])
    return table(["suite", "figure", "target", "measured", ""], rows)


def figure(value: float) -> str:
    """Return a share with four digits, a count of rounds or switches with at most two."""
    return f"{value:.4f}" if value < 2 else f"{value:.2f}".rstrip("0").rstrip(".")


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
