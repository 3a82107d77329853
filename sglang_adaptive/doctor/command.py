"""``sglang-adaptive doctor``: parses, runs the checks, and prints the verdict."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

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
from sglang_adaptive.doctor import installation
from sglang_adaptive.doctor.installation import NOTE, OK, PROBLEM, Check, LaunchLine, take_apart
from sglang_adaptive.policy.config import load_config
from sglang_adaptive.policy.errors import ConfigError
from sglang_adaptive.watch import DEGRADED, GONE, NOT_ADAPTIVE, read


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
    yield from server_checks(client) if client is not None else installation.checks(line)


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


def server_checks(client: Client) -> Iterator[Check]:
    """Yield the checks of the first replica of *client*'s server, and the problems of the others."""
    seen, *others = read(client)
    if seen["state"] == GONE:
        yield Check("server", PROBLEM, f"{client.url}: {seen['words']}")
        return
    yield Check("server", OK, f"{client.url} answers")
    if seen["attention_backend"] is not None:
        yield Check("attention backend", OK, f"{seen['attention_backend']} on {seen['device']}")
    if seen["state"] == NOT_ADAPTIVE:
        yield Check("adaptive speculation", PROBLEM, seen["words"])
        return
    yield _policy(seen)
    yield _rounds(seen["adaptive"])
    for alarm in seen["adaptive"]["alarms"]:
        yield Check(alarm["name"], PROBLEM, alarm["words"])
    if off := seen["adaptive"].get("off"):
        yield Check("features", NOTE, f"off: {', '.join(f'{name} ({reason})' for name, reason in off.items())}")
    for replica, other in enumerate(others, start=1):
        if other["state"] in (DEGRADED, NOT_ADAPTIVE):
            yield Check(f"replica {replica}", PROBLEM, other["words"])
        for alarm in other["adaptive"]["alarms"] if other["adaptive"] else ():
            yield Check(f"replica {replica}", PROBLEM, f"{alarm['name']}: {alarm['words']}")


def _policy(seen: dict[str, Any]) -> Check:
    if seen["state"] == DEGRADED:
        return Check("adaptive speculation", PROBLEM, seen["words"])
    state, held = seen["adaptive"], seen["adaptive"]["forced_steps"]
    words = f"policy {state['policy']}, depth {state['current_steps']} of {listed(state['tiers'])}"
    if held is not None:
        return Check("adaptive speculation", NOTE, f"{words}; an operator holds it at {held}")
    return Check("adaptive speculation", OK, words)


def _rounds(state: dict[str, Any]) -> Check:
    rounds, drafted, accepted = (sum(state[f"{what}_by_tier"].values()) for what in ("rounds", "drafted", "accepted"))
    if not rounds:
        return Check("rounds", NOTE, "no requests yet")
    kept = f", {accepted / drafted:.0%} of the drafts accepted" if drafted else ""
    return Check("rounds", OK, f"{rounds} rounds, {state['switches']} switches{kept}")
