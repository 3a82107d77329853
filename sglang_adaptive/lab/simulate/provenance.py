"""What a report needs to be run again."""

from __future__ import annotations

import datetime
import hashlib
import json
from typing import Any

from sglang_adaptive.lab.simulate.setting import Setting
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
