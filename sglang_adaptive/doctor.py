"""``sglang-adaptive doctor``: checks this machine, a launch line or a running server, and says what to change."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from sglang_adaptive import command_line, provenance
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
from sglang_adaptive.policy.config import load_config
from sglang_adaptive.policy.errors import ConfigError
from sglang_adaptive.serve_cpu import LaunchError, default_arguments, environment, take_threads, value_of
from sglang_adaptive.sglang_plugin.contract import RELEASES, supported, verdict
from sglang_adaptive.watch import DEGRADED, GONE, NOT_ADAPTIVE, read

# -- this machine and a launch line -----------------------------------------------------------------------------------

OK, NOTE, PROBLEM = "ok", "note", "problem"
"""Passed; a hint; to be fixed, because adaptive speculation cannot run or gains nothing until then."""


@dataclass(frozen=True, slots=True)
class Check:
    """A line of the report."""

    name: str
    status: str
    """OK, NOTE or PROBLEM."""
    words: str


_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_STARTS = (["sglang.launch_server"], ["sglang", "serve"], ["sglang-adaptive", "serve-cpu"])
EXPECTED = "python -m sglang.launch_server ..., sglang serve ..., sglang-adaptive serve-cpu ..., or SGLang's arguments"


@dataclass(frozen=True, slots=True)
class LaunchLine:
    """The parts of a launch line."""

    arguments: list[str]
    """SGLang's arguments; for serve-cpu those that the user typed."""
    variables: dict[str, str]
    """Environment variables set in front of the command."""
    on_cpu: bool
    """Whether ``sglang-adaptive serve-cpu`` launches it."""


def take_apart(words: Sequence[str]) -> LaunchLine:
    """Return the parts of the launch line *words*. Raises ValueError with one line if they are not a launch line."""
    rest = list(words)
    variables = {}
    while rest and (found := _ASSIGNMENT.fullmatch(rest[0])):
        variables[found[1]] = found[2]
        rest.pop(0)
    if rest and rest[0].startswith("-"):
        return LaunchLine(rest, variables, on_cpu=False)
    for at in range(len(rest)):
        for start in _STARTS:
            name = rest[at].rpartition("/")[2]  # as in .venv/bin/sglang
            if [name, *rest[at + 1 : at + len(start)]] == start:
                return LaunchLine(rest[at + len(start) :], variables, on_cpu=start[-1] == "serve-cpu")
    raise ValueError(f"no launch line in {' '.join(words)!r}; expected {EXPECTED}")


GROUP, PLUGIN = "sglang.srt.plugins", "sglang_adaptive"
LINE, FLAGS = "launch line", "renamed flags"
PATIENCE_SECONDS = 300.0
"""Limit in seconds; SGLang's imports take 10 s, or a minute on a busy machine."""


def machine_checks(line: LaunchLine | None) -> Iterator[Check]:
    """Yield the checks of this machine, and of *line* if given."""
    found = provenance.versions("sglang")
    yield Check("package", OK, f"sglang-adaptive {found['sglang_adaptive']}, Python {found['python']}")
    if found["sglang"] is None:
        yield Check("SGLang", PROBLEM, f"not installed beside this package, which supports {supported()}")
        return
    plugin = _plugin()
    if plugin is not None:
        yield Check("plugin", PROBLEM, plugin)
    try:
        answer = _ask(line)
    except LaunchError as error:
        yield Check(LINE, PROBLEM, str(error))
        return
    if "device" in answer:  # the process that imports SGLang answers up to its first failure
        yield _device(answer["device"])
    if "sglang" in answer and "contract" in answer:
        yield _contract(answer["sglang"], answer["contract"])
    if "doors" in answer and plugin is None:
        lost = answer["doors"]
        fine = "SGLang finds it, and its hooks are in place"
        yield Check("plugin", OK, fine) if lost is None else Check("plugin", PROBLEM, lost)
    if "failure" in answer:
        yield Check("SGLang", PROBLEM, f"it could not be checked further: {answer['failure']}")
    if "launch" in answer:
        yield from _launch(answer["launch"])


def _plugin() -> str | None:
    """Return why SGLang would not load this package's plugin, or None."""
    if not entry_points(group=GROUP, name=PLUGIN):
        return f"no entry point {PLUGIN} in the group {GROUP}: install the package with pip, beside SGLang"
    allowed = os.environ.get("SGLANG_PLUGINS", "")
    if allowed and PLUGIN not in [name.strip() for name in allowed.split(",")]:
        return f"SGLANG_PLUGINS is {allowed!r}, which leaves out {PLUGIN}"
    return None


def _device(device: dict[str, Any]) -> Check:
    if device["kind"] == "gpu":
        cards = [f"{name}, {size} GiB" for name, size in zip(device["names"], device["gibibytes"], strict=True)]
        return Check("device", OK, f"{listed(cards)}; torch {device['torch']}")
    words = f"no GPU that torch {device['torch']} sees: checked as `sglang-adaptive serve-cpu` would run SGLang"
    return Check("device", NOTE, words)


def _contract(version: str, found: dict[str, list[str]]) -> Check:
    words = verdict(version, found["missing"], found["changed"], between="\n         ")
    if found["missing"]:
        return Check("SGLang", PROBLEM, words)
    return Check("SGLang", NOTE if found["changed"] or version not in RELEASES else OK, words)


def _launch(launch: dict[str, Any]) -> Iterator[Check]:
    for change in launch.get("renamed", ()):
        told = f"leave it out, {change['why']}" if change["write"] is None else f"write {change['write']}"
        words = f"SGLang no longer takes {change['flag']}: {told}; the rest of the line is checked as if it were so"
        yield Check(FLAGS, PROBLEM, words)
    if "refused" in launch:
        yield Check(LINE, PROBLEM, f"the launch would end with: {launch['refused']}")
        return
    if not launch["asked"]:
        words = "it does not ask for adaptive speculation: add --speculative-adaptive-config throughput"
        yield Check(LINE, PROBLEM, words)
    elif launch["reason"] is not None:
        yield Check(LINE, PROBLEM, f"it would serve without adapting: {launch['reason']}")
        if (words := advice(launch["reason"], launch.get("drafts", {}))) is not None:
            yield Check("to adapt", NOTE, words)
    elif "unresolved" in launch:
        words = f"its arguments are fine; not checked further, because {launch['unresolved']}"
        yield Check(LINE, NOTE, words)
    else:
        yield Check(LINE, OK, f"adaptive speculation would run, starting at {launch['steps']} draft steps")
    if launch.get("hint") is not None:
        yield Check("draft", NOTE, launch["hint"])
    if launch.get("greedy_verify") is not None:
        yield Check("sampling", NOTE, launch["greedy_verify"])
    left_out = (*launch.get("left_out", ()), *launch.get("features_off", ()))
    for words in left_out if launch["reason"] is None else ():
        yield Check("left out", NOTE, words)
    if launch.get("attention_backend") is not None:
        backend, faster = f"{launch['attention_backend']} on {launch['device']}", launch.get("faster_backend")
        yield Check("attention backend", NOTE if faster else OK, f"{backend}; {faster}" if faster else backend)


def _ask(line: LaunchLine | None) -> dict[str, Any]:
    """Run SGLang's part of the checks in a separate process. Raises LaunchError if serve-cpu would reject *line*."""
    arguments, variables = None, dict(os.environ)
    if line is not None:
        arguments = line.arguments
        if line.on_cpu:
            arguments = take_threads(arguments)[1]
            arguments = [*arguments, *default_arguments(arguments)]
            variables |= environment()
        variables |= line.variables
    variables["HF_HUB_OFFLINE"] = "1"  # the doctor downloads nothing
    with tempfile.TemporaryDirectory(prefix="sglang-adaptive-") as folder:
        question, answer = Path(folder, "question.json"), Path(folder, "answer.json")
        question.write_text(json.dumps({"arguments": arguments}), encoding="utf-8")
        command = [sys.executable, "-m", "sglang_adaptive.sglang_plugin.launch.checkup", str(question), str(answer)]
        try:
            done = subprocess.run(
                command, env=variables, capture_output=True, text=True, errors="replace", timeout=PATIENCE_SECONDS
            )
        except subprocess.TimeoutExpired:
            return {"failure": f"no answer in {PATIENCE_SECONDS:.0f} s"}
        text = answer.read_text(encoding="utf-8") if answer.is_file() else ""
    found: dict[str, Any] = json.loads(text) if text else {}
    if not text or (done.returncode != 0 and "failure" not in found):
        found["failure"] = _end(done)
    return found


def _end(done: subprocess.CompletedProcess[str]) -> str:
    last = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
    return f"its process ended with code {done.returncode}: {last}"


# -- the command -----------------------------------------------------------------------------------------------------


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
    for name in (file, line and value_of(line.arguments, CONFIG)):
        if name is not None:
            yield configuration_check(name)
    yield from server_checks(client) if client is not None else machine_checks(line)


def _verdict(found: Sequence[Check], line: LaunchLine | None, client: Client | None) -> str:
    problems = [check for check in found if check.status == PROBLEM]
    if problems:
        names = ", ".join(dict.fromkeys(check.name for check in problems))
        return f"{len(problems)} problem{'' if len(problems) == 1 else 's'} to fix: {names}."
    if client is not None:
        return "the server adapts."
    if line is not None:
        if any(check.name == LINE and check.status == NOTE for check in found):
            return "the arguments of this launch line are fine; only the machine where it will run can tell more."
        return "this launch line would serve with adaptive speculation."
    speculates = "speculates with EAGLE, EAGLE3, STANDALONE, NGRAM or a Gemma 4 assistant"
    return f"ready: add {CONFIG} throughput to a launch line that {speculates}; doctor -- LINE checks it."


def _line(check: Check) -> str:
    status = f"{check.status:<8}"
    if has_colour(sys.stdout):
        status = f"\x1b[{COLOURS[check.status]}m{status}\x1b[0m"
    return f"{status} {check.name}: {check.words}"


# -- a running server ------------------------------------------------------------------------------------------------


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


# -- advice: what to change in a launch line that would not adapt ----------------------------------------------------

USUAL_STEPS = 5
"""Steps of a chain where a line leaves those of its tree to SGLang."""
WORTH = 1.10
"""Throughput over the best single depth when acceptance and load switch; one H200, simulated acceptance."""
_WORTH_WORDS = (
    f"adapting was worth {WORTH:.2f} times the best single depth when acceptance and load change, and nothing when "
    "neither does (docs/measurements.md)"
)
_EAGLE3 = (
    "with a draft trained for this model it would adapt: --speculative-algorithm EAGLE3 "
    "--speculative-draft-model-path DRAFT --speculative-eagle-topk 1"
)
_BLOCKS = f"a plain DFlash draft of this model would adapt (docs/block-drafters.md), and {_EAGLE3}"
_DSPARK = (
    "a model with an MTP layer, such as DeepSeek V4, adapts with --speculative-algorithm EAGLE "
    f"--speculative-eagle-topk 1; {_EAGLE3}"
)
_ATTENTION_DP = (
    "with attention DP EAGLE, EAGLE3 and NEXTN adapt, but not with SGLANG_ADAPTIVE_OFF=attention-dp, "
    "SGLANG_SCHEDULER_SKIP_ALL_GATHER, SGLANG_ENABLE_DP_SPEC_PREFILL_COORDINATION or "
    "--enable-dp-attention-local-control-broadcast: leave those out (docs/compatibility.md). Other algorithms adapt "
    "only with tensor parallelism: leave out --enable-dp-attention, --dp-size and --attn-dp-size"
)
_SEVERAL_LAYERS = (
    "drafts of several layers adapt only with tensor parallelism: leave out --enable-dp-attention, --dp-size and "
    "--attn-dp-size. With many requests at once attention DP is usually worth more (not measured here)"
)


def advice(reason: str, drafts: Mapping[str, Any]) -> str | None:
    """Return the change for *reason*, why a line would not adapt; None if none is known.

    *drafts* is how the line speculates: ``steps``, and ``depths``, the candidate steps of its configuration, if it
    names one.
    """
    for words, answer in _ANSWERS.items():
        if words in reason:
            return answer if isinstance(answer, str) else answer(drafts)
    return None


def _chain(drafts: Mapping[str, Any]) -> str:
    """Return the flags of a chain that replaces a tree: its steps if they may run, or the most below."""
    wanted = drafts.get("steps") or USUAL_STEPS
    steps = max((depth for depth in drafts.get("depths") or () if 0 < depth <= wanted), default=wanted)
    return (
        f"use a chain: --speculative-eagle-topk 1 --speculative-num-steps {steps} --speculative-num-draft-tokens "
        f"{steps + 1}: {_WORTH_WORDS}"
    )


def _without(*flags: str) -> str:
    return f"leave out {' and '.join(flags)}: {_WORTH_WORDS}"


_ANSWERS: dict[str, str | Callable[[Mapping[str, Any]], str]] = {
    "no --speculative-algorithm": f"{_EAGLE3}; a model with an MTP layer needs --speculative-algorithm EAGLE alone",
    "a prefill server": "nothing to change here: it is the decode server that adapts, so check its line",
    "speculative_eagle_topk=": _chain,
    "attention DP": _ATTENTION_DP,
    "DSPARK": _DSPARK,
    "Domino": _BLOCKS,
    "LiLiCorr": _BLOCKS,
    "NGRAM": "on a server that both prefills and decodes it adapts: leave out --disaggregation-mode",
    "--mamba-backend": _without("--mamba-backend"),
    "enable_multi_layer_eagle": _SEVERAL_LAYERS,
    "enable_two_batch_overlap": _without("--enable-two-batch-overlap"),
    "enable_pdmux": _without("--enable-pdmux"),
    "--enable-unified-memory": _without("--enable-unified-memory"),
    "--enable-hisparse": _without("--enable-hisparse"),
    "--kv-canary": _without("--kv-canary", "--kv-canary-sweep-interval"),
    "Ray's": _without("--use-ray"),
    "LoRA's": "merge the adapter into the model, and " + _without("--enable-lora", "--lora-paths"),
    "SGLANG_ENABLE_PP_SPEC": _without("SGLANG_ENABLE_PP_SPEC"),
}
"""By words of the reason, SGLang's or this package's; the first that occur in it apply."""
