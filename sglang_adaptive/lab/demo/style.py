"""Columns, colour and characters that the terminal can show."""

from __future__ import annotations

import os
import shutil
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TextIO

NARROWEST, WIDEST = 80, 120
PROSE = 100
"""The most columns of a line of text."""


@dataclass(frozen=True, slots=True)
class Style:
    """How to print to one stream."""

    columns: int = NARROWEST
    colour: bool = False
    unicode: bool = True

    @classmethod
    def of(cls, stream: TextIO, environment: Mapping[str, str] = os.environ) -> Style:
        """Return the style for *stream*: colour on a terminal only, and never against NO_COLOR."""
        terminal = is_terminal(stream, environment)
        columns = shutil.get_terminal_size((NARROWEST, 24)).columns
        return cls(
            columns=min(max(columns, NARROWEST), WIDEST),
            colour=terminal and not environment.get("NO_COLOR"),
            unicode=_can_encode(stream, "█░│└─┴┘"),
        )

    def bold(self, text: str) -> str:
        """Return *text* in bold where there is colour."""
        return self._paint(text, "1")

    def dim(self, text: str) -> str:
        """Return *text* faint where there is colour."""
        return self._paint(text, "2")

    def family(self, text: str, family: str) -> str:
        """Return *text* in the colour of a family of text."""
        return self._paint(text, {"easy": "32", "hard": "33"}.get(family, "36"))

    def prose(self, text: str) -> str:
        """Return *text* wrapped into lines."""
        return textwrap.fill(text, min(self.columns, PROSE), break_long_words=False, break_on_hyphens=False)

    def _paint(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.colour and text.strip() else text


def is_terminal(stream: TextIO, environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether *stream* is a terminal that can move its cursor."""
    return stream.isatty() and environment.get("TERM") != "dumb"


def _can_encode(stream: TextIO, text: str) -> bool:
    try:
        text.encode(stream.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
