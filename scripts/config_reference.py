"""Writes the table of docs/configuration.md from the schema; ``--check`` only says whether it is current."""

from __future__ import annotations

import sys
from pathlib import Path

from sglang_adaptive.policy.schema import CANDIDATE_STEPS, CANDIDATE_STEPS_EXPECTED, TUNING_KEYS

PAGE = Path(__file__).parents[1] / "docs" / "configuration.md"
BEGIN, END = "<!-- keys: begin -->\n", "<!-- keys: end -->\n"


def table() -> str:
    """Return the keys of the EMA policy as a Markdown table."""
    rows = [
        ("Key", "Default", "Accepted", "Meaning"),
        ("---",) * 4,
        (f"`{CANDIDATE_STEPS}`", "required", CANDIDATE_STEPS_EXPECTED, "depths that the slot may choose"),
    ]
    rows += [(f"`{key.name}`", f"{key.default:g}", key.expected, key.meaning) for key in TUNING_KEYS]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def current(page: str) -> str:
    """Return *page* with the table between its markers replaced."""
    before, rest = page.split(BEGIN)
    return before + BEGIN + table() + END + rest.split(END)[1]


def main() -> int:
    page = PAGE.read_text()
    if "--check" in sys.argv[1:]:
        return int(current(page) != page)
    PAGE.write_text(current(page))
    return 0


if __name__ == "__main__":
    sys.exit(main())
