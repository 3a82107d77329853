"""Errors that end a demo early."""

from __future__ import annotations


class UsageError(ValueError):
    """The command line cannot be used; the message is one line."""


class DemoError(RuntimeError):
    """A server failed; the message is one line, and `detail` the end of its log."""

    def __init__(self, message: str, detail: str = "") -> None:
        super().__init__(message)
        self.detail = detail
