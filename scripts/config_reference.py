"""Writes the tables of docs/configuration.md from the schema; ``--check`` only says whether they are current."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from sglang_adaptive.policy.schema import (
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
from sglang_adaptive.policy.throughput_options import (
    DEFAULT_LADDER,
    NUMBER_KEYS,
    PROFILE_DIR,
    PROFILE_DIR_EXPECTED,
)

PAGE = Path(__file__).parents[1] / "docs" / "configuration.md"


def tables() -> dict[str, str]:
    """Return the Markdown table of every marked place of the page, by the name in its markers."""
    names = " or ".join(f'"{name}"' for name in POLICY_NAMES)
    top = [
        ("policy", "see Policies", names, "what decides"),
        (WATCH, "false", WATCH_EXPECTED, "read the file again whenever it changes"),
    ]
    slot = [(CANDIDATE_STEPS, "required", CANDIDATE_STEPS_EXPECTED, "depths that the slot may choose")]
    ladder = str(list(DEFAULT_LADDER))
    throughput = [(CANDIDATE_STEPS, ladder, CANDIDATE_STEPS_EXPECTED, "depths that the policy may choose")]
    folder = [(PROFILE_DIR, "the user's cache", PROFILE_DIR_EXPECTED, "where round times are kept between starts")]
    switches = [(switch.name, switch.default, switch.expected, switch.meaning) for switch in SWITCHES]
    return {
        "top": _table(top),
        "keys": _table(slot + [_row(key) for key in TUNING_KEYS]),
        "throughput": _table(throughput + [_row(key) for key in NUMBER_KEYS] + folder),
        "server": _table([*switches, _row(ZERO_STEP_EXTEND_EVERY)]),
    }


def current(page: str) -> str:
    """Return *page* with the tables between its markers replaced."""
    for name, table in tables().items():
        begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->\n"
        before, rest = page.split(begin)
        page = before + begin + table + end + rest.split(end)[1]
    return page


def _row(key: NumberKey) -> tuple[str, ...]:
    return key.name, f"{key.default:g}", key.expected, key.meaning


def _table(rows: Sequence[tuple[str, ...]]) -> str:
    head = [("Key", "Default", "Accepted", "Meaning"), ("---",) * 4]
    body = [(f"`{name}`", *rest) for name, *rest in rows]
    return "".join(f"| {' | '.join(row)} |\n" for row in head + body)


def main() -> int:
    page = PAGE.read_text()
    if "--check" in sys.argv[1:]:
        return int(current(page) != page)
    PAGE.write_text(current(page))
    return 0


if __name__ == "__main__":
    sys.exit(main())
