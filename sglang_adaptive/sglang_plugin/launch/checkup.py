"""The checks of ``doctor`` that import SGLang, in a separate process: ``python -m ...checkup QUESTION ANSWER``.

QUESTION and ANSWER are JSON files, so that SGLang's output does not mix with the answer. The question is
``{"arguments": [...] or null}``; the answer has the results up to the first failure.
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sglang_adaptive.sglang_plugin import features, hooks
from sglang_adaptive.sglang_plugin.configuration import reading_of
from sglang_adaptive.sglang_plugin.contract import ContractError, Need, sglang_release
from sglang_adaptive.sglang_plugin.hooks import SRT, Process
from sglang_adaptive.sglang_plugin.launch import activation, line
from sglang_adaptive.sglang_plugin.notes import NOTE
from sglang_adaptive.sglang_plugin.setup import Setup

ASKED = (
    Need(SRT + "plugins.load_plugins"),
    Need(SRT + "server_args.prepare_server_args", ("argv",)),
    Need(SRT + "arg_groups.speculative_hook.handle_speculative_decoding", ("server_args",)),
    Need(SRT + "configs.model_config.ModelConfig._config_draft_model", ("self",)),
)
"""Attributes that only ``doctor`` needs; no launch is refused for them."""
WARM_UP_LEFT_OUT = "the warm-up: a decode server takes no requests of its own"


def main(question: Path, answer: Path) -> None:
    """Run the checks one by one; a check that raises is recorded as ``failure`` and ends the run."""
    arguments = json.loads(question.read_text())["arguments"]
    parts = {"device": device, "sglang": sglang_release, "contract": contract, "doors": doors}
    if arguments is not None:
        parts["launch"] = lambda: launch(arguments)
    found: dict[str, Any] = {}
    try:
        for name, part in parts.items():
            found[name] = part()
            answer.write_text(json.dumps(found))
    except Exception as error:
        found["failure"] = f"{type(error).__name__}: {_first_line(error)}"
    answer.write_text(json.dumps(found))


def device() -> dict[str, Any]:
    """Return the GPUs that torch finds; without one, restart this process with the environment of the CPU engine."""
    import torch

    from sglang_adaptive.serve_cpu import SWITCH, environment

    if torch.cuda.is_available():
        cards = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
        found = {"names": [card.name for card in cards], "gibibytes": [round(c.total_memory / 2**30) for c in cards]}
        return {"kind": "gpu", **found, "torch": torch.__version__}
    if SWITCH not in os.environ:
        command = [sys.executable, "-m", "sglang_adaptive.sglang_plugin.launch.checkup", *sys.argv[1:]]
        os.execve(command[0], command, {**os.environ, **environment()})
    return {"kind": "cpu", "torch": torch.__version__}


def contract() -> dict[str, list[str]]:
    """Return the package's needs that this SGLang does not meet, and the hooked bodies that have changed."""
    asked = (need.problem() for need in ASKED)
    missing = [*hooks.problems(), *hooks.problems_in_source(), *(problem for problem in asked if problem is not None)]
    # A function that does not fit has changed too, and is told once.
    changed = [one for one in hooks.changed() if not any(problem.startswith(one) for problem in missing)]
    return {"missing": missing, "changed": changed}


def doors() -> str | None:
    """Let SGLang load its plugins as a server does; return the problem with this plugin's hooks, or None."""
    from sglang.srt.plugins import load_plugins

    load_plugins()
    try:
        hooks.require_installed(hooks.hooks(Process.ENTRY))
    except ContractError as error:
        return str(error)
    return None


def launch(arguments: Sequence[str]) -> dict[str, Any]:
    """Parse and resolve SGLang's *arguments* as a launch does before it loads a model.

    The answer has ``renamed``: flags that this SGLang refuses, with replacements. The other keys describe the line
    after these replacements. ``refused`` (one line) is the error that would end the launch. Otherwise there are

    - ``asked``: whether adaptive speculation is requested;
    - ``reason``: why it would be off, or None;
    - ``drafts``: the ``steps`` of the line and the ``depths`` of its configuration; None where it names none;
    - ``left_out``: what is unavailable, one phrase each;
    - ``features_off``: options of the configuration that will not be used, one phrase each;
    - ``hint``: see `line.hint`;
    - ``attention_backend``: SGLang's choice;
    - ``faster_backend``: see `line.faster_backend`;
    - ``greedy_verify``: see `line.greedy_verify`;
    - ``unresolved``: why SGLang cannot resolve the arguments on this machine; ``reason`` then follows from arguments
      and model configurations alone.
    """
    from sglang.srt.server_args import prepare_server_args

    mended, changes = line.mend(arguments)
    found: dict[str, Any] = {"renamed": [asdict(change) for change in changes]}
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            server_args = prepare_server_args(mended)
    except SystemExit:
        return {**found, "refused": (said.getvalue().strip().splitlines() or ["SGLang exits without output"])[-1]}
    except Exception as error:
        return {**found, "refused": _first_line(error)}
    named = server_args.speculative_adaptive_config
    found |= {
        "asked": activation.asked_for(server_args),
        "drafts": {
            "steps": server_args.speculative_num_steps,
            "depths": None if named is None else reading_of(server_args).config.candidate_steps,
        },
        "left_out": [WARM_UP_LEFT_OUT] if server_args.disaggregation_mode == "decode" else [],
        "hint": line.hint(server_args),
    }
    if (missing := line.missing(server_args)) is not None:
        return {**found, "refused": missing}
    unresolved = _cannot_resolve(server_args)
    if unresolved is not None:
        as_parsed = copy.deepcopy(server_args)
        reason = line.static_reason(server_args) if found["asked"] else None
        follows = reason is None or server_args.disaggregation_mode == "prefill"
        refused = line.refused(as_parsed, adapts=found["asked"] and follows)
        found |= {"reason": reason, "unresolved": unresolved, "features_off": features_off(server_args)}
        return found | ({"refused": refused} if refused else {})
    try:
        server_args.resolve_once()
    except Exception as error:
        return {**found, "refused": _first_line(error)}
    return {**found, **_resolved(server_args)}


def features_off(server_args: Any) -> list[str]:
    """Return the features that a line's configuration asks for and its arguments rule out, with reasons."""
    from sglang.srt.arg_groups.overrides import resolving_view

    if server_args.speculative_algorithm is None:
        return []
    config, found = reading_of(server_args).config, Setup(arguments=resolving_view(server_args))
    asked = {**config.as_dict(), "lookup": config.options.lookup is True}
    names = [name for name, feature in features.FEATURES.items() if feature.key is not None and asked.get(feature.key)]
    reasons = {name: features.why_not(name, found) for name in names}
    return [f"{name} is off: {reason}" for name, reason in reasons.items() if reason is not None]


def _resolved(server_args: Any) -> dict[str, Any]:
    from sglang.srt.arg_groups.overrides import resolving_view

    cfg, reason = resolving_view(server_args), getattr(server_args, NOTE, {}).get("reason")
    exact = activation.asked_for(server_args) and reason is None and reading_of(server_args).config.exact
    return {
        "reason": reason,
        "features_off": features_off(server_args),
        "greedy_verify": line.greedy_verify(cfg, exact),
        "attention_backend": cfg.attention_backend,
        "faster_backend": line.faster_backend(server_args, cfg.attention_backend),
        "device": str(cfg.device),
        "steps": None if cfg.speculative_num_draft_tokens is None else cfg.speculative_num_draft_tokens - 1,
    }


def _cannot_resolve(server_args: Any) -> str | None:
    """Return why SGLang cannot resolve the arguments on this machine, without a download, or None."""
    import torch
    from transformers import AutoConfig

    if not torch.cuda.is_available() and not str(server_args.device).startswith("cpu"):
        return "there is no GPU here"
    for path in filter(None, (server_args.model_path, server_args.speculative_draft_model_path)):
        try:
            AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
        except OSError:
            return f"{path} is not on this machine"
        except Exception:  # perhaps known to SGLang, which reports it itself
            continue
    return None


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # an orderly shutdown of SGLang's modules takes seconds
