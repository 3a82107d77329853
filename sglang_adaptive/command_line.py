"""Shared by all subcommands: the parser, one-line errors, exit codes, and the signals that end one."""

from __future__ import annotations

import argparse
import math
import os
import shutil
import signal
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, TextIO

PROGRAM = "sglang-adaptive"
DONE, PROBLEM, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130
"""Exit codes: success; the command found a problem; bad usage or input; Ctrl-C."""
DEFAULT_URL = "http://127.0.0.1:30000"
"""SGLang's default address."""


class CommandParser(argparse.ArgumentParser):
    """Parser of ``sglang-adaptive NAME``: help with examples and exit codes, one-line errors.

    *purpose* consists of paragraphs; indented ones are kept as they are. *examples* are (arguments after the name, what
    that does); the tests run all of them.
    """

    def __init__(
        self, name: str, purpose: str, examples: Sequence[tuple[str, str]], exit_codes: str, *, usage: str | None = None
    ) -> None:
        self.name, self.purpose, self.examples, self.exit_codes = name, purpose, tuple(examples), exit_codes
        super().__init__(
            prog=f"{PROGRAM} {name}",
            usage=usage,
            description="\n\n".join(p if p.startswith("  ") else _fill(p) for p in purpose.split("\n\n")),
            epilog=_epilog(name, examples, exit_codes),
            formatter_class=partial(argparse.RawDescriptionHelpFormatter, max_help_position=28, width=_columns()),
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        """Exit with BAD_INPUT and one line; argparse would also print the usage."""
        self.exit(BAD_INPUT, f"{self.prog}: error: {message}\n")


def add_server(parser: argparse.ArgumentParser, *, changes: bool = False) -> None:
    """Add the options that name a running server; where the command *changes* it, ``--url`` is required."""
    told = f"the server, such as {DEFAULT_URL} ({'required' if changes else f'default: {DEFAULT_URL}'})"
    url = None if changes else DEFAULT_URL
    parser.add_argument("--url", type=server_url, default=url, required=changes, metavar="URL", help=told)
    add_api_key(parser)
    if changes:
        add_api_key(parser, "--admin-api-key", "SGLANG_ADMIN_API_KEY", "the server's admin API key, if it has one")


def add_api_key(
    parser: argparse.ArgumentParser, flag: str = "--api-key", variable: str = "SGLANG_API_KEY",
    what: str = "the server's API key",
) -> None:  # fmt: skip
    """Add the option for a server that asks for a key."""
    told = f"{what} (default: ${variable})"
    parser.add_argument(flag, type=header_value, default=os.environ.get(variable), metavar="KEY", help=told)


def header_value(text: str) -> str:
    """Return a key without the white space around it, for ``type=`` of an argument."""
    key = text.strip()
    if not (key.isascii() and key.isprintable()):
        raise argparse.ArgumentTypeError("the key has characters that HTTP does not allow; expected printable ASCII")
    return key


def server_url(text: str) -> str:
    """Return the address of a server, for ``type=`` of an argument."""
    from sglang_adaptive.client import Client

    try:
        Client.from_url(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def count(text: str, least: int = 1) -> int:
    """Return an integer of at least *least*, for ``type=`` of an argument."""
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"got {text!r}; expected a whole number of at least {least}")
    return int(text)


def number(what: str, least: float, most: float) -> Callable[[str], float]:
    """Return a parser of *what*, a number from *least* to *most*, for ``type=`` of an argument."""

    def parsed(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"got {text!r}; expected {what} from {least:g} to {most:g}")
        return value

    return parsed


def failed(name: str, line: str, code: int) -> int:
    """Print to standard error why ``sglang-adaptive NAME`` ends with *code*; return *code*."""
    print(f"{PROGRAM} {name}: error: {line}", file=sys.stderr)
    return code


def new_file(text: str) -> Path:
    """Return the path of a file to write, for ``type=`` of an argument."""
    path = Path(text)
    folder = path.absolute().parent
    if path.is_dir() or not folder.is_dir():
        raise argparse.ArgumentTypeError(f"got {text!r}; expected a file in an existing folder")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise argparse.ArgumentTypeError(f"got {text!r}; expected a file that may be written")
    return path


def has_colour(stream: TextIO, environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether *stream* is a terminal that supports color, and NO_COLOR is not set."""
    return stream.isatty() and environment.get("TERM") != "dumb" and not environment.get("NO_COLOR")


def listed(items: Sequence[object], last: str = "and") -> str:
    """Return *items* as words: "1", "1 and 3", "1, 3 and 7"."""
    words = [str(item) for item in items]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {last} {words[-1]}"


def _columns() -> int:
    return min(100, shutil.get_terminal_size().columns) - 2


def _fill(text: str) -> str:
    return textwrap.fill(text, _columns(), break_on_hyphens=False)


def _epilog(name: str, examples: Sequence[tuple[str, str]], exit_codes: str) -> str:
    lines = ["examples:"]
    for arguments, meaning in examples:
        lines += [f"  # {meaning}", f"  {PROGRAM} {name} {arguments}".rstrip()]
    return "\n".join([*lines, "", _fill(f"exit codes: {exit_codes}")])


STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """The command must stop because of the signal `signum`."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum
        self.exit_code = 128 + signum
        """The shell's code for a command that ended by this signal."""


class StopSignals:
    """Raises Interrupted in the main thread on Ctrl-C, `kill` and a closed terminal, while entered.

    A signal that was ignored when the command began, as under nohup, stays ignored.
    """

    def __init__(self) -> None:
        self._previous: dict[signal.Signals, Any] = {}
        self._holds = 0
        self._pending: int | None = None

    def __enter__(self) -> StopSignals:
        for signum in STOPPING:
            if signal.getsignal(signum) is not signal.SIG_IGN:
                self._previous[signum] = signal.signal(signum, self._arrived)
        return self

    def __exit__(self, *_: object) -> None:
        for signum, handler in self._previous.items():
            signal.signal(signum, handler)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Defer signals inside the ``with``; one that arrives is raised after it."""
        self._holds += 1
        try:
            yield
        finally:
            self._holds -= 1
        if self._pending is not None and not self._holds:
            signum, self._pending = self._pending, None
            raise Interrupted(signum)

    def _arrived(self, signum: int, frame: FrameType | None) -> None:
        if self._holds:
            self._pending = signum
        else:
            raise Interrupted(signum)
