"""One check and its result."""

from __future__ import annotations

from dataclasses import dataclass

OK, NOTE, PROBLEM = "ok", "note", "problem"
"""Passed; a hint; to be fixed, because adaptive speculation cannot run or gains nothing until then."""


@dataclass(frozen=True, slots=True)
class Check:
    """A line of the report."""

    name: str
    status: str
    """OK, NOTE or PROBLEM."""

    words: str
