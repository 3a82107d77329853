"""The one error that a bad trace raises, always a single line."""

from __future__ import annotations

from sglang_adaptive.policy.errors import printable, shown


class TraceError(ValueError):
    """A trace that cannot be used: which file, which key, what was found, what is accepted."""

    def __init__(self, file: str, key: str | None, value: object, expected: str) -> None:
        self.file = file
        self.key = key
        self.value = value
        self.expected = expected
        place = printable(file) if key is None else f"{printable(file)}: {printable(key)}"
        super().__init__(f"{place}: {shown(value)}; expected {expected}")

    def __reduce__(self) -> tuple[type[TraceError], tuple[str, str | None, object, str]]:
        # Exception pickles its message only, and a replay may run in other processes.
        return type(self), (self.file, self.key, self.value, self.expected)
