"""``sglang-adaptive audit``: ask a live server the same at every depth, and compare with zero steps."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from tqdm import tqdm

from sglang_adaptive.audit import report
from sglang_adaptive.audit.audit import ZERO, Audit, Found, Subject
from sglang_adaptive.audit.questions import KINDS, PENALTIES, Prompt, questions, read, shipped
from sglang_adaptive.client import HOLD_SECONDS, Client, NotReady, most_running, read_info
from sglang_adaptive.command_line import (
    BAD_INPUT,
    DONE,
    PROBLEM,
    CommandParser,
    StopSignals,
    add_server,
    count,
    failed,
    listed,
    new_file,
    number,
    server_url,
)
from sglang_adaptive.provenance import command_line, git_commit, versions

LONGEST = 6000
"""Characters of the longest built-in prompt."""


def parser() -> CommandParser:
    found = CommandParser(
        "audit",
        "Sends a live server the same greedy requests at every depth, while depths switch and under its policy, alone "
        "and several at once, with penalties, a minimum length, a JSON schema and log-probabilities, and compares the "
        "answers token for token with zero steps on the same server, or with another server without speculation. If "
        "texts differ, the log-probabilities of both tokens show whether it is a tie, which rounding decides, or a "
        "wrong token. Other clients may use the server meanwhile. At the end, or "
        f"{HOLD_SECONDS:.0f} seconds after a kill -9, the server returns to the depth that was held before, or to the "
        "policy's choice. A server with a fixed depth, with or without this package, needs --reference.",
        [
            ("--url http://127.0.0.1:30000", "five minutes"),
            ("--url http://127.0.0.1:30000 --passes 1 --sampled --json audit.json",
             "every question once, sampled requests too, and save the findings"),
            ("--url http://127.0.0.1:30000 --reference http://127.0.0.1:30001",
             "any server against one without speculation, started with --disable-overlap-schedule"),
        ],
        "0 no wrong token; 1 a wrong token, or the server cannot be audited; 2 bad usage",
    )  # fmt: skip
    add_server(found, changes=True)
    add = found.add_argument
    told = "compare with this server, which must have the same key and no speculation"
    add("--reference", type=server_url, metavar="URL", help=told)
    mine = 'your prompts, one per line: text, {"text": ...} or {"input_ids": [...]} (default: 8 shipped ones)'
    add("--prompts", type=Path, metavar="FILE", help=mine)
    minutes = number("minutes", 0.05, 24 * 60)
    add("--minutes", type=minutes, default=5.0, metavar="N", help="minutes to run (default: 5)")
    add("--passes", type=count, metavar="N", help="stop earlier, once every question was asked this many times")
    add("--tokens", type=count, default=64, metavar="N", help="tokens per answer (default: %(default)s)")
    add("--at-once", type=count, default=8, metavar="N", help="requests that run together (default: %(default)s)")
    add("--sampled", action="store_true", help="also compare how often each sampled token occurs")
    add("--seed", type=count, default=1, metavar="N", help="seed for the order of questions (default: %(default)s)")
    add("--json", type=new_file, metavar="FILE", help="write the findings to this file")
    return found


def main(argv: Sequence[str]) -> int:
    """Run the command; returns the exit code. Raises Interrupted."""
    arguments = parser().parse_args(argv)
    try:
        own = None if arguments.prompts is None else read(arguments.prompts)
    except OSError as error:
        return failed("audit", f"--prompts {arguments.prompts}: cannot be read ({error.strerror})", BAD_INPUT)
    except ValueError as error:
        return failed("audit", f"--prompts: {error}", BAD_INPUT)
    connect = partial(Client.from_url, api_key=arguments.api_key, admin_api_key=arguments.admin_api_key)
    reference = None if arguments.reference is None else connect(arguments.reference)
    try:
        with StopSignals():
            return _audit(arguments, connect(arguments.url), reference, own)
    except NotReady as error:
        return failed("audit", str(error), PROBLEM)


def _audit(
    arguments: argparse.Namespace, client: Client, reference: Client | None, own: Mapping[str, Prompt] | None
) -> int:
    subject = Subject(client)
    kinds = _kinds(subject, reference)
    at_once = min(arguments.at_once, most_running(subject.info) or arguments.at_once)
    context = int(subject.info.get("max_req_input_len") or LONGEST)
    # At most a sixth of the context, if each character is a token.
    prompts = own or shipped(max(200, min(LONGEST, (context - arguments.tokens) // 6)))
    asked = questions(prompts, arguments.tokens, kinds)
    # disable=None: a bar on a terminal only
    with tqdm(total=round(60 * arguments.minutes), unit="s", disable=None, dynamic_ncols=True) as bar:

        def show(way: str, found: Found) -> None:
            bar.set_description(f"{way}: {len(found.compared)} texts", refresh=False)
            bar.update(min(round(bar.format_dict["elapsed"]), bar.total) - bar.n)

        audit = Audit(subject, reference, asked, at_once, arguments.seed, show)
        found = audit.run(60 * arguments.minutes, arguments.passes, arguments.sampled)
    against = "zero steps" if reference is None else reference.url
    drafts = subject.info.get("speculative_algorithm") or "no speculation"
    drafts += f" at {listed(list(subject.depths.values()))} steps" if subject.depths else ""
    print(f"{client.url}, {subject.info.get('model_path')}, {drafts}, compared with {against}")
    print("\n".join(report.table(found, against, at_once)))
    if arguments.json is not None:
        about = {"url": client.url, "reference": against, "prompts": len(prompts), "kinds": list(kinds),
                 "tokens": arguments.tokens, "at_once": at_once, "seed": arguments.seed,
                 "model": subject.info.get("model_path"), "algorithm": subject.info.get("speculative_algorithm"),
                 "depths": list(subject.depths.values()), "versions": versions("sglang"), "commit": git_commit(),
                 "command": command_line("audit", sys.argv[2:])}  # fmt: skip
        try:
            arguments.json.write_text(json.dumps(report.as_json(found, about), indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            return failed("audit", f"{arguments.json}: cannot be written ({error.strerror})", PROBLEM)
        print(f"wrote {arguments.json}", file=sys.stderr)
    return DONE if report.is_sound(found) else PROBLEM


def _kinds(subject: Subject, reference: Client | None) -> list[str]:
    """Return the kinds of requests to ask. Raises NotReady if there is nothing to compare with."""
    if reference is None:
        if subject.server is None:
            url = subject.client.url
            raise NotReady(f"{url} does not adapt: expected --reference URL of a server without speculation")
        if ZERO not in subject.depths or len(subject.depths) == 1:
            depths = listed(list(subject.depths.values()))
            raise NotReady(
                f"the server has the depths {depths}: expected --reference URL, or 0 and other depths among them"
            )
        return list(KINDS)
    info = read_info(reference)
    if info.get("speculative_algorithm") is not None:
        algorithm = info["speculative_algorithm"]
        raise NotReady(f"--reference: {reference.url} speculates ({algorithm}); expected a server that does not")
    if info.get("disable_overlap_schedule"):
        return list(KINDS)
    print(
        f"penalties are left out: {reference.url} overlaps its rounds, and counts a token late; start it with "
        "--disable-overlap-schedule",
        file=sys.stderr,
    )
    return [kind for kind in KINDS if kind not in PENALTIES]
