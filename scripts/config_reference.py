"""Writes the tables of docs/configuration.md from the schema; ``--check`` only says whether they are current."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from generated import DOCS, update

from sglang_adaptive.policy.config.schema import (
    CANDIDATE_STEPS,
    CANDIDATE_STEPS_EXPECTED,
    POLICY_NAMES,
    SWITCHES,
    TUNING_KEYS,
    WATCH,
    WATCH_EXPECTED,
    ZERO_STEP_EXTEND_EVERY,
    NumberKey,
)
from sglang_adaptive.policy.config.throughput_options import (
    DEFAULT_LADDER,
    NUMBER_KEYS,
    PROFILE_DIR,
    PROFILE_DIR_EXPECTED,
    VERIFY_BUDGET,
)
from sglang_adaptive.policy.config.trace_options import FILE, FILE_EXPECTED, MAX_MB, TRACE, TRACE_EXPECTED


def tables() -> dict[str, list[str]]:
    """Return the lines of the Markdown table of every marked place of the page, by the name in its markers."""
    names = " or ".join(f'"{name}"' for name in POLICY_NAMES)
    top = [
        ("policy", "see Policies", names, "what decides"),
        (WATCH, "false", WATCH_EXPECTED, "read the file again whenever it changes"),
    ]
    slot = [(CANDIDATE_STEPS, "required", CANDIDATE_STEPS_EXPECTED, "depths that the slot may choose")]
    ladder = str(list(DEFAULT_LADDER))
    throughput = [(CANDIDATE_STEPS, ladder, CANDIDATE_STEPS_EXPECTED, "depths that the policy may choose")]
    folder = [(PROFILE_DIR, "the user's cache", PROFILE_DIR_EXPECTED, "where round times are kept between starts")]
    budget = [(VERIFY_BUDGET.name, VERIFY_BUDGET.default, VERIFY_BUDGET.expected, VERIFY_BUDGET.meaning)]
    switches = [(switch.name, switch.default, switch.expected, switch.meaning) for switch in SWITCHES]
    file = (FILE, "required", FILE_EXPECTED, "where rounds are written; beside it, with `.1` at its end, older ones")
    trace = (TRACE, "nowhere", TRACE_EXPECTED, "write down the rounds that the server runs; see below")
    return {
        "top": _table(top),
        "keys": _table(slot + [_row(key) for key in TUNING_KEYS]),
        "throughput": _table(throughput + [_row(key) for key in NUMBER_KEYS] + budget + folder),
        "server": _table([*switches, _row(ZERO_STEP_EXTEND_EVERY), trace]),
        "trace": _table([file, _row(MAX_MB)]),
    }


def _row(key: NumberKey) -> tuple[str, ...]:
    return key.name, f"{key.default:g}", key.expected, key.meaning


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    head = [("Key", "Default", "Accepted", "Meaning"), ("---",) * 4]
    body = [(f"`{name}`", *rest) for name, *rest in rows]
    return [f"| {' | '.join(row)} |" for row in head + body]


if __name__ == "__main__":
    sys.exit(update(DOCS / "configuration.md", tables()))
