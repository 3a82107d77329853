"""``sglang-adaptive chat``: finds or starts the server, then chats in the terminal, with the steps of each answer."""

from __future__ import annotations

import argparse
import contextlib
import http.client
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from sglang_adaptive.client import Client, NotReady, RequestError, in_words, read_info
from sglang_adaptive.command_line import (
    DEFAULT_URL,
    DONE,
    PROBLEM,
    CommandParser,
    Interrupted,
    StopSignals,
    add_api_key,
    count,
    failed,
    has_colour,
    number,
    server_url,
)
from sglang_adaptive.lab.cpu_engine.server import CpuServer, ServerError
from sglang_adaptive.lab.demo.terminal import Progress, rounds_by_steps
from sglang_adaptive.lab.models.folders import ModelError
from sglang_adaptive.lab.models.smollm2 import ready_pair, speculation
from sglang_adaptive.serve_cpu import LaunchError

TOKENS = 256
HELP = "/new starts over, /quit or Ctrl-D quits; Ctrl-C stops an answer"
MOST_DEPTHS = 3
"""How many numbers of steps are listed at most, those with the most rounds first."""


def parser() -> CommandParser:
    found = CommandParser(
        "chat",
        "Lets you chat with a model in the terminal. After each answer it prints the speed and the draft steps of the "
        "rounds. Without --url it serves SmolLM2-135M-Instruct with its draft on this machine's CPU, which takes "
        "about half a minute to start and 2.5 GB of memory; the first time it adds the model to your cache (see "
        "models). With --url it talks to any SGLang server that has a chat template. Quit with Ctrl-D, Ctrl-C or "
        "/quit; during an answer, Ctrl-C stops that answer. You can also pipe questions in, one per line.",
        [
            ("", "chat with SmolLM2 on the CPU"),
            (f"--url {DEFAULT_URL}", "chat with your own server"),
            ("--system 'You translate to French.' --tokens 64", "use a system prompt and short answers"),
        ],
        "0 done; 1 no server, no model, or a question failed; 2 bad usage; 130 interrupted",
    )
    add = found.add_argument
    add("--url", type=server_url, metavar="URL", help=f"server to talk to, such as {DEFAULT_URL} (default: start one)")
    add_api_key(found)
    add("--system", metavar="TEXT", help="system prompt (default: from the chat template)")
    add("--tokens", type=count, default=TOKENS, metavar="N", help="maximum tokens per answer (default: %(default)s)")
    add("--temperature", type=number("a number", 0, 2), default=0.0, metavar="T", help="0 to 2 (default: 0)")
    add("--threads", type=count, default=1, metavar="N", help="threads for the server it starts (default: 1)")
    return found


def main(argv: Sequence[str]) -> int:
    """Run the command; returns the exit code."""
    arguments = parser().parse_args(argv)
    try:
        with StopSignals() as signals, _server(arguments, signals) as client:
            return DONE if Talk(client, arguments).run() else PROBLEM
    except Interrupted as stop:
        return stop.exit_code
    except BrokenPipeError:
        raise
    except (ModelError, LaunchError, ServerError, NotReady) as error:
        return failed("chat", str(error), PROBLEM)
    except (OSError, http.client.HTTPException, RequestError) as error:
        return failed("chat", f"{arguments.url}: {in_words(error)}", PROBLEM)


@contextlib.contextmanager
def _server(arguments: argparse.Namespace, signals: StopSignals) -> Iterator[Client]:
    """Yield the client of the given server, or of one that runs inside the ``with``."""
    if arguments.url is not None:
        client = Client.from_url(arguments.url, api_key=arguments.api_key)
        read_info(client)
        yield client
        return
    told = Progress(sys.stderr)
    with contextlib.ExitStack() as at_end:
        at_end.callback(told.clear)
        plain, draft = ready_pair(told.now)
        folder = Path(at_end.enter_context(tempfile.TemporaryDirectory(prefix="sglang-adaptive-chat-")))
        starting = "starting SmolLM2 on this machine's CPU"
        told.now(starting)
        server = CpuServer(
            [*plain, *speculation(draft, "throughput")],
            threads=arguments.threads,
            log=folder / "server.log",
            on_progress=lambda stage: told.now(f"{starting}: {stage}"),
        )
        try:
            server.start()
            told.done(f"SmolLM2-135M-Instruct is ready at {server.url}")
            yield server
        finally:
            with signals.held():
                server.stop()


def drafting(client: Client) -> Counter[int]:
    """Return the server's rounds so far by steps; empty when it does not adapt. Raises what Client does."""
    state = client.server_info()["internal_states"][0].get("adaptive")
    return rounds_by_steps(state if state and state["active"] else None)


def measured(tokens: int, seconds: float, rounds: Counter[int], *, cut: bool) -> str:
    """Return the speed of an answer in words, the server's *rounds* by steps meanwhile, and whether it was *cut*."""
    words = f"{tokens} tokens, {tokens / seconds:.1f} tokens/s"
    if total := rounds.total():
        mean = sum(steps * times for steps, times in rounds.items()) / total
        most = ", ".join(f"{steps}: {times / total:.0%}" for steps, times in rounds.most_common(MOST_DEPTHS))
        words += f", {tokens / total:.2f} tokens per round, {mean:.1f} draft steps ({most})"
    return words + ("; reached the limit, raise it with --tokens" if cut else "")


class Talk:
    """A conversation: reads questions until there are no more.

    Answers go to standard output, times and errors to standard error.
    """

    def __init__(self, client: Client, arguments: argparse.Namespace) -> None:
        self._client = client
        self._system = [{"role": "system", "content": arguments.system}] if arguments.system else []
        self._tokens, self._temperature = arguments.tokens, arguments.temperature
        self._messages: list[dict[str, str]] = []
        self._by_hand = sys.stdin.isatty()
        self._colour = has_colour(sys.stderr)
        self._well = True

    def run(self) -> bool:
        """Run until the last question; returns whether every question was answered. Raises NotReady."""
        if self._by_hand:
            self._say(f"Type a question. {HELP}.")
        while (question := self._next()) is not None and question != "/quit":
            if question == "/new":
                self._messages.clear()
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
        """Print the answer to *question*, and keep both if it is complete. Raises NotReady when the server is lost."""
        asked = [*self._messages, {"role": "user", "content": question}]
        answer, tokens, reason = "", 0, None
        try:
            before, begin = drafting(self._client), time.perf_counter()
            chunks = self._client.chat([*self._system, *asked], self._tokens, temperature=self._temperature)
            with contextlib.closing(chunks):
                for chunk in chunks:
                    tokens = (chunk.get("usage") or {}).get("completion_tokens", tokens)
                    for choice in chunk.get("choices", ()):
                        text, reason = choice["delta"].get("content") or "", choice.get("finish_reason") or reason
                        answer += text
                        print(text, end="", flush=True)
            seconds, after = time.perf_counter() - begin, drafting(self._client)
        except (RequestError, OSError, http.client.HTTPException) as error:
            if isinstance(error, BrokenPipeError):
                raise
            if answer:
                print(flush=True)
            if not isinstance(error, RequestError):
                raise NotReady(f"{self._client.url}: the server was lost: {in_words(error)}") from None
            self._well = False
            self._say(f"the server rejected the question: {in_words(error)}; /new starts over")
        except Interrupted as stop:
            if not self._by_hand or stop.signum != signal.SIGINT:
                raise
            self._say("\n[stopped]")
        else:
            print(flush=True)
            self._messages = [*asked, {"role": "assistant", "content": answer}]
            self._say(f"[{measured(tokens, seconds, after - before, cut=reason == 'length')}]")

    def _say(self, line: str) -> None:
        print(f"\x1b[2m{line}\x1b[0m" if self._colour else line, file=sys.stderr, flush=True)
