"""One check and its result."""

from __future__ import annotations

from dataclasses import dataclass

OK, NOTE, PROBLEM = "ok", "note", "problem"
"""Passed; a hint; adaptive speculation cannot run until it is fixed."""


@dataclass(frozen=True, slots=True)
class Check:
    """A line of the report."""

    name: str
    status: str
    """OK, NOTE or PROBLEM."""

    words: str
