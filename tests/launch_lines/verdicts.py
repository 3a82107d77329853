"""The verdict on every published launch line, from the doctor's own code: no GPU, no weights, one process."""

from __future__ import annotations

import functools
import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from sglang_adaptive.policy.config import load_config
from sglang_adaptive.sglang_plugin import hooks
from sglang_adaptive.sglang_plugin.launch import checkup
from sglang_adaptive.sglang_plugin.launch.activation import from_command_line

HERE = Path(__file__).parent
CONFIGS = HERE.parents[1] / "configs"
ADAPTS, WITH_LESS, STATIC, ENDS = "adapts", "adapts with less", "static", "the launch ends"

_TARGET = ("--model", "--model-path")
_DRAFT = ("--speculative-draft-model-path", "--speculative-draft-model")
_STEPS = ("--speculative-num-steps", "--speculative-num-draft-tokens")
_TOPK = "--speculative-eagle-topk"


def lines() -> list[dict[str, Any]]:
    """Return the collected lines; README.md gives their sources and explains their keys."""
    found: list[dict[str, Any]] = _read("launch_lines.json")["lines"]
    return found


def expected() -> dict[str, dict[str, Any]]:
    """Return each line's required verdict, by name."""
    found: dict[str, dict[str, Any]] = _read("expected.json")
    return found


def preset(line: dict[str, Any]) -> str:
    """Return the stem of the configuration in configs/ for the model of *line*, or its algorithm."""
    if line["algorithm"] == "DFLASH":
        return "throughput"
    return str(_models()["targets"][line["model"]]["preset"])


def configuration(line: dict[str, Any]) -> str:
    """Return the name of the stub configuration for the target of *line*."""
    return str(_models()["targets"][line["model"]]["configuration"])


def to_try(line: dict[str, Any]) -> tuple[list[str], dict[str, str | None]]:
    """Return the arguments of *line* with its preset added, and the changed flags, None for removed ones.

    A launch depth that the preset does not list would end the launch, so it is left out. A tree still needs one and
    gets the next lower listed depth. Model paths become configuration folders.
    """
    models = _models()
    target = HERE / "configs" / configuration(line)
    path = CONFIGS / f"{preset(line)}.json"
    depths = load_config(str(path)).candidate_steps
    given = list(flags(line["argv"]))
    steps = next((int(values[0]) for flag, values in given if flag == _STEPS[0]), depths[0])
    tree = any(flag == _TOPK and values != ["1"] for flag, values in given)
    words, changed = [], dict[str, str | None]()
    for flag, values in given:
        if steps not in depths and tree and flag == _STEPS[0]:
            nearest = str(max(depth for depth in depths if depth < steps))
            changed[" ".join([flag, *values])] = f"{flag} {nearest}"
            values = [nearest]
        elif steps not in depths and not tree and flag in _STEPS:
            changed[" ".join([flag, *values])] = None
            continue
        if flag in _TARGET:
            values = [str(target)]
        elif flag in _DRAFT:
            values = [str(HERE / "configs" / models["drafts"][values[0]])]
        words += [flag, *values]
    return [*words, "--speculative-adaptive-config", str(path)], changed


def launched(line: dict[str, Any]) -> dict[str, Any]:
    """Return what the doctor finds about *line*; cached."""
    if line["name"] not in _launched:
        with patch.dict(os.environ, line["env"]):
            _launched[line["name"]] = checkup.launch(to_try(line)[0])
    return _launched[line["name"]]


_launched: dict[str, dict[str, Any]] = {}


def verdict(line: dict[str, Any]) -> dict[str, Any]:
    """Return the verdict on *line*, its reason, the omitted flags, and the suggested changes."""
    found, changed = launched(line), to_try(line)[1]
    changes: dict[str, Any] = {"renamed": {change["flag"]: change["write"] for change in found["renamed"]}}
    changes["leave_out"] = [flag for flag, instead in changed.items() if instead is None]
    if instead := {flag: instead for flag, instead in changed.items() if instead is not None}:
        changes["write"] = instead
    if "refused" in found:
        return {"verdict": ENDS, "reason": found["refused"], **changes}
    less = found["left_out"] if found["reason"] is None else []
    kind = STATIC if found["reason"] is not None else WITH_LESS if less else ADAPTS
    return {"verdict": kind, "reason": found["reason"], "less": less, **changes}


@contextmanager
def launcher() -> Iterator[None]:
    """Route SGLang's command line through the package, as in a process that loaded its plugins, without a network.

    The check of the installed SGLang runs once instead of for each of 200 lines.
    """
    offline = patch.dict(os.environ, {"HF_HUB_OFFLINE": "1"})
    offline.start()  # before the import, which reads it
    from sglang.srt.server_args import ServerArgs

    original = ServerArgs.from_cli_args.__func__  # type: ignore[attr-defined]
    handlers, level = logging.root.handlers[:], logging.root.level
    ServerArgs.from_cli_args = classmethod(  # type: ignore[method-assign]
        lambda cls, args: from_command_line(original, cls, args)
    )
    try:
        with patch.object(hooks, "problems", functools.cache(hooks.problems)):
            yield
    finally:
        ServerArgs.from_cli_args = classmethod(original)  # type: ignore[method-assign]
        logging.root.handlers[:], logging.root.level = handlers, level  # SGLang's parser sets its own
        offline.stop()


def flags(argv: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield each flag of *argv* with its values; split ``--flag=value``, and skip values without a flag."""
    flag, values = None, []
    for word in argv:
        if not word.startswith("--"):
            values.append(word)
            continue
        if flag is not None:
            yield flag, values
        flag, equals, value = word.partition("=")
        values = [value] if equals else []
    if flag is not None:
        yield flag, values


def _models() -> dict[str, Any]:
    return _read("models.json")


def _read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((HERE / name).read_text())
    return found
