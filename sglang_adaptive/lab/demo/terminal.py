"""What the demo shows on a terminal while it runs: its progress, and the answer as it grows."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

WIDEST = 120
_MARGIN = 18
"""Columns before an answer: the steps of its rounds, and the tokens per round."""


def console_of(stream: TextIO) -> Console:
    """Return a console that prints text as it is, in at most WIDEST columns."""
    # rich would use its own definition of a terminal, from FORCE_COLOR and the like.
    found = Console(file=stream, force_terminal=stream.isatty(), markup=False, emoji=False, highlight=False)
    found.width = min(found.width, WIDEST)
    return found


def rounds_by_steps(state: Mapping[str, Any] | None) -> Counter[int]:
    """Return the rounds so far of *state*, the ``adaptive`` block of /server_info; empty without one."""
    return Counter({int(steps): count for steps, count in state["rounds_by_tier"].items()} if state else {})


def _live(console: Console) -> Live | None:
    """Return a part of the terminal that changes; None where nothing can."""
    if not console.is_terminal or console.is_dumb_terminal:
        return None
    # Without a thread, which would take time from what the demo measures.
    return Live(console=console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False)


class Progress:
    """Prints one changing line on a terminal, one line per stage elsewhere; each begins with the elapsed seconds."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._console, self._clock, self._begin = console_of(stream), clock, clock()
        self._live: Live | None = None
        self._shown = ""

    def now(self, text: str) -> None:
        """Show *text* until the next call; only on a terminal."""
        if self._live is None:
            self._live = _live(self._console)
            if self._live is None:
                return
            self._live.start()
        if (line := self._stamped(text)) != self._shown:
            self._shown = line
            self._live.update(Text(line, no_wrap=True, overflow="ellipsis"), refresh=True)

    def done(self, text: str) -> None:
        """Print *text* as a permanent line."""
        self.clear()
        self._console.print(self._stamped(text), soft_wrap=True)

    def clear(self) -> None:
        """Clear the changing line."""
        if self._live is not None:
            self._live.stop()
        self._live, self._shown = None, ""

    def _stamped(self, text: str) -> str:
        return f"[{self._clock() - self._begin:4.0f} s] {text}"


class AnswerScreen:
    """Prints a growing answer line by line inside ``with``, with the steps of its rounds beside it.

    *rounds* returns the server's rounds so far by steps. On a terminal the unfinished line is shown too; elsewhere a
    line is printed when it is complete.
    """

    def __init__(self, console: Console, rounds: Callable[[], Counter[int]]) -> None:
        self._console, self._rounds, self._live = console, rounds, _live(console)
        self._bar = "|" if console.options.ascii_only else "│"
        self._line, self._read = "", 0
        self._before, self._tokens_before, self._tokens = rounds(), 0, 0

    def __enter__(self) -> AnswerScreen:
        self._console.print(Text(f"{'steps':>7}{'per round':>10} {self._bar}", "dim"))
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._line:
            self._finish(self._line)
        if self._live is not None:
            self._live.stop()

    def grown(self, text: str, tokens: int) -> None:
        """Show the new part of *text*, the whole answer so far, of *tokens* tokens."""
        self._line += text[self._read :]
        self._read, self._tokens = len(text), tokens
        lines = Text(self._line).wrap(self._console, self._console.width - _MARGIN - 2)
        *finished, self._line = [line.plain for line in lines]
        for line in finished:
            self._finish(line.rstrip())
        if self._live is not None:
            self._live.update(self._beside("", self._line), refresh=True)

    def _finish(self, line: str) -> None:
        self._console.print(self._beside(self._margin(), line))

    def _margin(self) -> str:
        """Return the most frequent steps of the rounds since the previous line, and their tokens per round."""
        now = self._rounds()
        rounds, tokens = now - self._before, self._tokens - self._tokens_before
        if not rounds or not tokens:
            return ""
        self._before, self._tokens_before = now, self._tokens
        most = ",".join(str(steps) for steps, _ in rounds.most_common(2))
        return f"{most:>7}{tokens / rounds.total():>10.1f}"

    def _beside(self, margin: str, line: str) -> Text:
        return Text.assemble((f"{margin:<{_MARGIN}}", "bold"), f"{self._bar} {line}", no_wrap=True, overflow="ignore")
