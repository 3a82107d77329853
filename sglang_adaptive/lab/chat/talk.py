"""Runs the chat: questions from a terminal or a pipe, answers as they grow."""

from __future__ import annotations

import contextlib
import http.client
import signal
import sys

from sglang_adaptive.client import NotReady, RequestError, in_words
from sglang_adaptive.command_line import Interrupted, has_colour
from sglang_adaptive.lab.chat.conversation import Conversation

HELP = "/new starts over, /quit or Ctrl-D quits; Ctrl-C stops an answer"


class Talk:
    """Reads questions until there are no more. Answers go to standard output, times and errors to standard error."""

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self._by_hand = sys.stdin.isatty()
        self._colour = has_colour(sys.stderr)
        self._well = True

    def run(self) -> bool:
        """Run until the last question; returns whether every question was answered. Raises NotReady."""
        if self._by_hand:
            self._say(f"Type a question. {HELP}.")
        while (question := self._next()) is not None and question != "/quit":
            if question == "/new":
                self._conversation.messages.clear()
            elif question == "/help":
                self._say(HELP)
            elif question.startswith("/"):
                self._say(f"{question.split()[0]}: unknown command; {HELP}")
            elif question:
                self._answer(question)
        return self._well

    def _next(self) -> str | None:
        """Return the next question, stripped; None after the last."""
        if self._by_hand:
            with contextlib.suppress(ImportError):
                import readline  # noqa: F401  # arrow keys and history
            try:
                return input("\nyou> ").strip()
            except EOFError:
                print()
                return None
        line = sys.stdin.readline()
        return line.strip() if line else None

    def _answer(self, question: str) -> None:
        """Print the answer to *question*. Raises NotReady when the server is lost."""
        answer = self._conversation.ask(question)
        in_line = False
        try:
            for text in answer:
                in_line = True
                print(text, end="", flush=True)
            print(flush=True)
            in_line = False
            self._say(f"[{self._conversation.measured}]")
        except (RequestError, OSError, http.client.HTTPException) as error:
            if isinstance(error, BrokenPipeError):
                raise
            if in_line:
                print(flush=True)
            if not isinstance(error, RequestError):
                raise NotReady(f"{self._conversation.client.url}: the server was lost: {in_words(error)}") from None
            self._well = False
            self._say(f"the server rejected the question: {in_words(error)}; /new starts over")
        except Interrupted as stop:
            if not self._by_hand or stop.signum != signal.SIGINT:
                raise
            self._say("\n[stopped]")
        finally:
            answer.close()

    def _say(self, line: str) -> None:
        print(f"\x1b[2m{line}\x1b[0m" if self._colour else line, file=sys.stderr, flush=True)
