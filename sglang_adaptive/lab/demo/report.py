"""The demo's results as one JSON object, and its file."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sglang_adaptive import provenance
from sglang_adaptive.lab.demo.drawing import points
from sglang_adaptive.lab.demo.results import (
    Mismatch,
    PhaseResult,
    Run,
    accept_length,
    rounds_by_depth,
    tokens_per_second,
)

SCHEMA = 1


def build(
    runs: Sequence[Run],
    wrong: Sequence[Mismatch],
    failed: Sequence[str],
    *,
    seconds: float,
    load: float,
    argv: Sequence[str],
) -> dict[str, Any]:
    """Return the report; *runs* start with the one without speculation.

    *seconds* is the demo's duration, *load* the machine's load average when it began.
    """
    adaptive = [run for run in runs if run.contender.adaptive]
    return {
        "schema": SCHEMA,
        "lossless": not wrong,
        "mismatches": [asdict(mismatch) for mismatch in wrong],
        "failures": list(failed),
        "switches": sum(run.switches for run in adaptive),
        "policies": {run.contender.key: _policy(run) for run in runs},
        "phases": [_phase(runs, index) for index in range(len(runs[0].phases))],
        "timeline": [asdict(point) for run in adaptive for point in points(run)],
        "versions": provenance.versions("sglang", "torch"),
        "git_commit": provenance.git_commit(),
        "cpu": {"model": provenance.cpu_model(), "cores": provenance.cpu_cores(), "load_before": round(load, 2)},
        "seconds": round(seconds, 1),
        "command": provenance.command_line("demo", argv),
        "notes": {
            "static": "one adaptive server holds each static depth through adaptive_force_steps",
            "tokens_per_second": "generated tokens divided by the wall time of a phase, at the client",
            "accept_length": "generated tokens divided by verify rounds, from SGLang's meta_info",
            "rounds_by_depth": "the server's rounds by draft depth; each round serves all running requests",
            "timeline": "seconds of measured time, without the pauses between phases",
        },
    }


def check_path(path: Path) -> None:
    """Raise ValueError with the problem if a report cannot be written to *path*."""
    if path.is_dir():
        raise ValueError(f"--json {path}: is a directory; expected a file name")
    if path.exists() and not path.is_file():
        raise ValueError(f"--json {path}: is not a regular file")
    if not path.parent.is_dir():
        raise ValueError(f"--json {path}: the folder {path.parent} does not exist")
    try:
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise ValueError(f"--json {path}: cannot write in {path.parent} ({error.strerror})") from None


def write(path: Path, report: dict[str, Any]) -> None:
    """Write *report* to *path* atomically. Raises OSError."""
    text = json.dumps(report, indent=1) + "\n"
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _policy(run: Run) -> dict[str, Any]:
    return {
        "title": run.contender.title,
        "adaptive": run.contender.adaptive,
        "forced_steps": run.contender.forced_steps,
        "tiers": list(run.tiers),
        "degraded": run.degraded,
        "switches": run.switches,
        **_numbers(run.phases),
    }


def _phase(runs: Sequence[Run], index: int) -> dict[str, Any]:
    phase = runs[0].phases[index].phase
    return {
        "name": phase.name,
        "family": phase.family,
        "concurrency": phase.concurrency,
        "requests": len(phase.prompts),
        "tokens_per_request": phase.max_new_tokens,
        "policies": {run.contender.key: _phase_numbers(run.phases[index]) for run in runs},
    }


def _phase_numbers(result: PhaseResult) -> dict[str, Any]:
    return {**_numbers([result]), "seconds": round(result.seconds, 3), "switches": result.switch_count}


def _numbers(results: Sequence[PhaseResult]) -> dict[str, Any]:
    length = accept_length(results)
    return {
        "tokens": sum(result.tokens for result in results),
        "tokens_per_second": round(tokens_per_second(results), 2),
        "accept_length": None if length is None else round(length, 4),
        "rounds_by_depth": {str(depth): count for depth, count in rounds_by_depth(results).items()},
    }
