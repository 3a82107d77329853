"""``sglang-adaptive chat``: finds or starts the server, then chats."""

from __future__ import annotations

import argparse
import http.client
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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
    number,
    server_url,
)
from sglang_adaptive.lab.chat.conversation import Conversation
from sglang_adaptive.lab.chat.talk import Talk
from sglang_adaptive.lab.cpu_engine.server import CpuServer, ServerError
from sglang_adaptive.lab.demo.terminal import Progress
from sglang_adaptive.lab.models.command import progress
from sglang_adaptive.lab.models.folders import ModelError
from sglang_adaptive.lab.models.smollm2 import ready_pair
from sglang_adaptive.serve_cpu import LaunchError

TOKENS = 256
CONFIG = {"policy": "throughput"}


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
            talk = Talk(Conversation(client, arguments.system, arguments.tokens, arguments.temperature))
            return DONE if talk.run() else PROBLEM
    except Interrupted as stop:
        return stop.exit_code
    except BrokenPipeError:
        raise
    except (ModelError, LaunchError, ServerError, NotReady) as error:
        return failed("chat", str(error), PROBLEM)
    except (OSError, http.client.HTTPException, RequestError) as error:
        return failed("chat", f"{arguments.url}: {in_words(error)}", PROBLEM)


@contextmanager
def _server(arguments: argparse.Namespace, signals: StopSignals) -> Iterator[Client]:
    """Yield the client of the given server, or of one that runs inside the ``with``."""
    if arguments.url is not None:
        client = Client.from_url(arguments.url, api_key=arguments.api_key)
        read_info(client)
        yield client
        return
    with progress() as tick:
        pair = ready_pair(tick)
    told = Progress(sys.stderr)
    with tempfile.TemporaryDirectory(prefix="sglang-adaptive-chat-") as folder:
        config = Path(folder) / "config.json"
        config.write_text(json.dumps(CONFIG), encoding="utf-8")
        starting = "starting SmolLM2 on this machine's CPU"
        told.now(starting)
        server = CpuServer(
            pair.adaptive(config),
            threads=arguments.threads,
            log=Path(folder) / "server.log",
            on_progress=lambda stage: told.now(f"{starting}: {stage}"),
        )
        try:
            server.start()
            told.done(f"SmolLM2-135M-Instruct is ready at {server.url}")
            yield server
        finally:
            told.clear()
            with signals.held():
                server.stop()
