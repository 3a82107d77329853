"""The error that a bad configuration raises; its message is always a single line."""

from __future__ import annotations

import json
from typing import Any

SHOWN_VALUE_CHARS = 60


class ConfigError(ValueError):
    """An unusable configuration, in one line: which file, which key, what was found, what is accepted."""

    def __init__(self, file: str, key: str | None, problem: str, expected: str) -> None:
        self.file, self.key, self.problem, self.expected = file, key, problem, expected
        place = printable(file) if key is None else f"{printable(file)}: {printable(key)}"
        super().__init__(f"{place}: {problem}; expected {expected}")

    def __reduce__(self) -> tuple[type[ConfigError], tuple[str, str | None, str, str]]:
        # Exception pickles its message only, and these errors cross process boundaries.
        return type(self), (self.file, self.key, self.problem, self.expected)


def shown(value: Any) -> str:
    """Return *value* as JSON on one line, shortened in the middle when long."""
    try:
        text = json.dumps(value, ensure_ascii=True, default=repr)
    except (ValueError, RecursionError):  # integers past Python's digit limit, or nested too deeply
        text = f"<{type(value).__name__}>"
    if len(text) <= SHOWN_VALUE_CHARS:
        return text
    half = (SHOWN_VALUE_CHARS - 5) // 2
    return f"{text[:half]} ... {text[-half:]}"


def printable(text: str) -> str:
    """Return *text* with line breaks and control characters escaped, shortened when long."""
    escaped = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
    if len(escaped) <= 4 * SHOWN_VALUE_CHARS:
        return escaped
    return f"{escaped[: 2 * SHOWN_VALUE_CHARS]} ... {escaped[-SHOWN_VALUE_CHARS:]}"
