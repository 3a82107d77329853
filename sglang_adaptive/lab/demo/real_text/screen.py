"""Shows a growing answer line by line, with the steps of its rounds beside it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TextIO

from sglang_adaptive.lab.chat.conversation import Drafting
from sglang_adaptive.lab.demo.drawing import Style, is_terminal

_MARGIN = 18
_CLEAR = "\r\x1b[K"


class AnswerScreen:
    """Prints to *stream*; *rounds* returns the server's counts so far, None where it does not speculate.

    On a terminal the unfinished line is shown too; elsewhere a line is printed when it is complete.
    """

    def __init__(self, stream: TextIO, style: Style, rounds: Callable[[], Drafting | None]) -> None:
        self._stream, self._style, self._rounds = stream, style, rounds
        self._bar = "│" if style.unicode else "|"
        self._live = is_terminal(stream)
        self._width = style.columns - _MARGIN - 2
        self._line, self._read = "", 0
        self._before, self._tokens_before, self._tokens = rounds(), 0, 0

    def heading(self) -> None:
        """Print the heading of the margin."""
        self._write(self._style.dim(f"{'steps':>7}{'per round':>10} {self._bar}"), "\n")

    def grown(self, text: str, tokens: int) -> None:
        """Show what is new in *text*, the whole answer so far, of *tokens* tokens."""
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
        """Return the end of the line; None while it may grow."""
        newline = self._line.find("\n")
        if 0 <= newline <= self._width:
            return newline
        if len(self._line) <= self._width:
            return None
        return max(self._line.rfind(" ", 1, self._width + 1), 0) or self._width

    def _finish(self, line: str) -> None:
        self._write(_CLEAR if self._live else "", self._beside(self._margin()), line, "\n")

    def _margin(self) -> str:
        """Return the most frequent steps of the rounds since the line before, and their tokens per round."""
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
