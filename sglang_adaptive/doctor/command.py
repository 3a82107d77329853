"""``sglang-adaptive doctor``: parses, runs the checks, and prints the verdict."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from sglang_adaptive import command_line
from sglang_adaptive.client import Client
from sglang_adaptive.command_line import (
    BAD_INPUT,
    DONE,
    CommandParser,
    add_api_key,
    failed,
    has_colour,
    listed,
    server_url,
)
from sglang_adaptive.doctor import installation, running
from sglang_adaptive.doctor.installation import NOTE, OK, PROBLEM, Check, LaunchLine, take_apart
from sglang_adaptive.policy.config import load_config
from sglang_adaptive.policy.errors import ConfigError


def configuration_check(name: str) -> Check:
    """Check the configuration *name*, a file or a preset, with the server's code."""
    try:
        config = load_config(name)
    except ConfigError as error:
        return Check("configuration", PROBLEM, str(error))
    depths = listed(config.candidate_steps)
    return Check("configuration", OK, f"{name}: policy {config.policy}, depths {depths}; `validate` says more")


COLOURS = {OK: "32", NOTE: "33", PROBLEM: "31"}
CONFIG = "--speculative-adaptive-config"


def parser() -> CommandParser:
    """Return the parser of the command, without the launch line after ``--``."""
    found = CommandParser(
        "doctor",
        "Checks what adaptive speculation needs and gives a verdict: SGLang's version and everything in it that this "
        "package hooks, the GPU, whether SGLang finds the plugin, a configuration, and a launch line. A launch "
        "line is processed as in a launch, up to loading the model; doctor says what would make the server refuse to "
        "start, or serve without adapting. It downloads nothing. With --url it checks a running server instead.",
        [
            ("", "this machine"),
            ("conservative", "this machine and a configuration"),
            ("-- sglang serve --model-path MODEL --speculative-algorithm EAGLE3 "
             "--speculative-draft-model-path DRAFT --speculative-adaptive-config conservative",
             "a launch line"),
            ("--url http://127.0.0.1:30000", "a running server"),
        ],
        "0 no problem; 1 at least one problem; 2 bad usage",
        usage="sglang-adaptive doctor [-h] [--url URL] [--api-key KEY] [--json] [FILE] [-- LAUNCH LINE ...]",
    )  # fmt: skip
    told = f"a configuration to check, as for {CONFIG}: a file or the name of a preset"
    found.add_argument("file", nargs="?", metavar="FILE", help=told)
    found.add_argument("--url", type=server_url, metavar="URL", help="check this server instead of this machine")
    add_api_key(found)
    found.add_argument("--json", action="store_true", help="print the checks and the verdict as one JSON object")
    return found


def main(argv: Sequence[str]) -> int:
    """Run the command; returns 0 if no check failed, 1 if one did, 2 for bad usage."""
    words = list(argv)
    own, line_words = (words[: words.index("--")], words[words.index("--") + 1 :]) if "--" in words else (words, None)
    arguments = parser().parse_args(own)
    if arguments.url is not None and line_words is not None:
        return failed("doctor", "--url and a launch line: expected one of them", BAD_INPUT)
    try:
        line = None if line_words is None else take_apart(line_words)
    except ValueError as error:
        return failed("doctor", str(error), BAD_INPUT)
    client = None
    if arguments.url is not None:
        client = Client.from_url(arguments.url, api_key=arguments.api_key, timeout=30)
    found: list[Check] = []
    for check in _checks(arguments.file, line, client):
        found.append(check)
        if not arguments.json:
            print(_line(check), flush=True)
    verdict = _verdict(found, line, client)
    bad = any(check.status == PROBLEM for check in found)
    if arguments.json:
        report = {"checks": [asdict(check) for check in found], "verdict": verdict, "ok": not bad}
        print(json.dumps(report, indent=1))
    else:
        print(f"\nVerdict: {verdict}")
    return command_line.PROBLEM if bad else DONE


def _checks(file: str | None, line: LaunchLine | None, client: Client | None) -> Iterator[Check]:
    if file is not None:
        yield configuration_check(file)
    named = None if line is None else _config_of(line.arguments)
    if named is not None:
        yield configuration_check(named)
    yield from running.checks(client) if client is not None else installation.checks(line)


def _config_of(arguments: Sequence[str]) -> str | None:
    """Return the configuration that a launch line names."""
    for index, argument in enumerate(arguments):
        flag, equals, value = argument.partition("=")
        if flag == CONFIG:
            return value if equals else next(iter(arguments[index + 1 : index + 2]), None)
    return None


def _verdict(found: Sequence[Check], line: LaunchLine | None, client: Client | None) -> str:
    problems = [check for check in found if check.status == PROBLEM]
    if problems:
        names = ", ".join(dict.fromkeys(check.name for check in problems))
        return f"{len(problems)} problem{'' if len(problems) == 1 else 's'} to fix: {names}."
    if client is not None:
        return "the server adapts."
    if line is not None:
        if any(check.name == installation.LINE and check.status == NOTE for check in found):
            return "the arguments of this launch line are fine; only the machine where it will run can tell more."
        return "this launch line would serve with adaptive speculation."
    speculates = "speculates with EAGLE, EAGLE3, STANDALONE, NGRAM or a Gemma 4 assistant"
    return f"ready: add {CONFIG} throughput to a launch line that {speculates}; doctor -- LINE checks it."


def _line(check: Check) -> str:
    status = f"{check.status:<8}"
    if has_colour(sys.stdout):
        status = f"\x1b[{COLOURS[check.status]}m{status}\x1b[0m"
    return f"{status} {check.name}: {check.words}"
