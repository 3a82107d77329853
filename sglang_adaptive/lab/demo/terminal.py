"""What the demo shows on a terminal while it runs: columns and color, its progress, and the answer as it grows."""

from __future__ import annotations

import os
import shutil
import textwrap
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TextIO

from sglang_adaptive.command_line import has_colour
from sglang_adaptive.lab.chat.conversation import Drafting

NARROWEST, WIDEST = 80, 120
PROSE = 100
"""Maximum columns of a line of text."""

UNICODE_MARKS = "█░│└─┴┘"
"""Chart characters: most of a cell, some of it, bar, corner, floor, tick and end."""

_CLEAR = "\r\x1b[K"


@dataclass(frozen=True, slots=True)
class Style:
    """How to print to one stream."""

    columns: int = NARROWEST
    colour: bool = False
    unicode: bool = True

    @classmethod
    def of(cls, stream: TextIO, environment: Mapping[str, str] = os.environ) -> Style:
        """Return the style for *stream*."""
        columns = shutil.get_terminal_size((NARROWEST, 24)).columns
        return cls(
            columns=min(max(columns, NARROWEST), WIDEST),
            colour=has_colour(stream, environment),
            unicode=_can_encode(stream, UNICODE_MARKS),
        )

    def bold(self, text: str) -> str:
        """Return *text* in bold if the stream has color."""
        return self._paint(text, "1")

    def dim(self, text: str) -> str:
        """Return *text* dimmed if the stream has color."""
        return self._paint(text, "2")

    def family(self, text: str, family: str) -> str:
        """Return *text* in the color of a text family."""
        return self._paint(text, {"easy": "32", "hard": "33"}.get(family, "36"))

    def prose(self, text: str) -> str:
        """Return *text* wrapped into lines."""
        return textwrap.fill(text, min(self.columns, PROSE), break_long_words=False, break_on_hyphens=False)

    def _paint(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.colour and text.strip() else text


def _can_encode(stream: TextIO, text: str) -> bool:
    try:
        text.encode(stream.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _can_move_cursor(stream: TextIO) -> bool:
    return stream.isatty() and os.environ.get("TERM") != "dumb"


class Progress:
    """Prints one changing line on a terminal, one line per stage elsewhere; each begins with the elapsed seconds."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._begin = clock()
        self._live = _can_move_cursor(stream)
        self._shown = ""

    @property
    def seconds(self) -> float:
        """Seconds since the demo began."""
        return self._clock() - self._begin

    def now(self, text: str) -> None:
        """Show *text* until the next call; only on a terminal."""
        if not self._live:
            return
        line = self._stamped(text)[: shutil.get_terminal_size().columns - 1]
        if line != self._shown:
            self._shown = line
            self._write(f"{_CLEAR}{line}")

    def done(self, text: str) -> None:
        """Print *text* as a permanent line."""
        self.clear()
        self._write(f"{self._stamped(text)}\n")

    def clear(self) -> None:
        """Clear the changing line."""
        if self._shown:
            self._shown = ""
            self._write(_CLEAR)

    def _stamped(self, text: str) -> str:
        return f"[{self.seconds:4.0f} s] {text}"

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


_MARGIN = 18
"""Columns before an answer: the steps of its rounds, and the tokens per round."""


class AnswerScreen:
    """Prints a growing answer to *stream* line by line, with the steps of its rounds beside it.

    *rounds* returns the server's counts so far, or None without speculation. On a terminal the unfinished line is shown
    too; elsewhere a line is printed when it is complete.
    """

    def __init__(self, stream: TextIO, style: Style, rounds: Callable[[], Drafting | None]) -> None:
        self._stream, self._style, self._rounds = stream, style, rounds
        self._bar = "│" if style.unicode else "|"
        self._live = _can_move_cursor(stream)
        self._width = style.columns - _MARGIN - 2
        self._line, self._read = "", 0
        self._before, self._tokens_before, self._tokens = rounds(), 0, 0

    def heading(self) -> None:
        """Print the heading of the margin."""
        self._write(self._style.dim(f"{'steps':>7}{'per round':>10} {self._bar}"), "\n")

    def grown(self, text: str, tokens: int) -> None:
        """Show the new part of *text*, the whole answer so far, of *tokens* tokens."""
        self._line += text[self._read :]
        self._read, self._tokens = len(text), tokens
        while (cut := self._cut()) is not None:
            line, rest = self._line[:cut], self._line[cut:]
            self._line = rest[1:] if rest[0] in "\n " else rest
            self._finish(line.rstrip())
        if self._live:
            self._write(_CLEAR, self._beside(""), self._line)

    def end(self) -> None:
        """Print the rest of the answer."""
        if self._line:
            self._finish(self._line)
            self._line = ""

    def _cut(self) -> int | None:
        """Return the end of the line; None while the line may grow."""
        newline = self._line.find("\n")
        if 0 <= newline <= self._width:
            return newline
        if len(self._line) <= self._width:
            return None
        return max(self._line.rfind(" ", 1, self._width + 1), 0) or self._width

    def _finish(self, line: str) -> None:
        self._write(_CLEAR if self._live else "", self._beside(self._margin()), line, "\n")

    def _margin(self) -> str:
        """Return the most frequent steps of the rounds since the previous line, and their tokens per round."""
        now = self._rounds()
        if now is None or self._before is None:
            return ""
        rounds, tokens = now.since(self._before), self._tokens - self._tokens_before
        if not rounds.total or not tokens:
            return ""
        self._before, self._tokens_before = now, self._tokens
        steps = sorted(rounds.rounds, key=lambda steps: -rounds.rounds[steps])[:2]
        return f"{','.join(map(str, steps)):>7}{tokens / rounds.total:>10.1f}"

    def _beside(self, margin: str) -> str:
        return f"{self._style.bold(f'{margin:<{_MARGIN}}')}{self._bar} "

    def _write(self, *texts: str) -> None:
        self._stream.write("".join(texts))
        self._stream.flush()
