"""Checks of this machine: versions, device, SGLang's features, the plugin, and a launch line."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from sglang_adaptive import provenance
from sglang_adaptive.command_line import listed
from sglang_adaptive.doctor.advice import advice
from sglang_adaptive.serve_cpu import LaunchError, default_arguments, environment, sglang_arguments
from sglang_adaptive.sglang_plugin.contract import RELEASES, supported, verdict

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


def checks(line: LaunchLine | None) -> Iterator[Check]:
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
    yield from _answered(answer, plugin is None)


def _answered(answer: dict[str, Any], plugin_listed: bool) -> Iterator[Check]:
    """Yield the checks of the process that imported SGLang, up to its first failure."""
    if "device" in answer:
        yield _device(answer["device"])
    if "sglang" in answer and "contract" in answer:
        yield _contract(answer["sglang"], answer["contract"])
    if "doors" in answer and plugin_listed:
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
        yield Check(FLAGS, PROBLEM, _renamed(change))
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


def _renamed(change: dict[str, str | None]) -> str:
    told = f"leave it out, {change['why']}" if change["write"] is None else f"write {change['write']}"
    return f"SGLang no longer takes {change['flag']}: {told}; the rest of the line is checked as if it were so"


def _ask(line: LaunchLine | None) -> dict[str, Any]:
    """Run SGLang's part of the checks in a separate process. Raises LaunchError if serve-cpu would reject *line*."""
    arguments, variables = None, dict(os.environ)
    if line is not None:
        arguments = line.arguments
        if line.on_cpu:
            arguments = sglang_arguments(arguments)
            arguments = [*arguments, *default_arguments(arguments)]
            variables |= environment()
        variables |= line.variables
    variables["HF_HUB_OFFLINE"] = "1"  # the doctor downloads nothing
    with tempfile.TemporaryDirectory(prefix="sglang-adaptive-") as folder:
        question, answer = Path(folder, "question.json"), Path(folder, "answer.json")
        question.write_text(json.dumps({"arguments": arguments}), encoding="utf-8")
        try:
            done = _run(["sglang_adaptive.sglang_plugin.launch.checkup", str(question), str(answer)], variables)
        except subprocess.TimeoutExpired:
            return {"failure": f"no answer in {PATIENCE_SECONDS:.0f} s"}
        if answer.is_file() and (text := answer.read_text(encoding="utf-8")):
            found: dict[str, Any] = json.loads(text)
            if done.returncode == 0 or "failure" in found:
                return found
            return {**found, "failure": _end(done)}
        return {"failure": _end(done)}


def _run(module: list[str], variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a module with its arguments in a Python like this one."""
    command = [sys.executable, "-m", *module]
    return subprocess.run(
        command, env=variables, capture_output=True, text=True, errors="replace", timeout=PATIENCE_SECONDS, check=False
    )


def _end(done: subprocess.CompletedProcess[str]) -> str:
    last = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
    return f"its process ended with code {done.returncode}: {last}"
