"""Named checks that need their own process: one side runs them, the other reads the results.

``TRITON_INTERPRET=1 python -m tests.checks NAME_checks`` runs those of modules without a device and prints one JSON
object: null for each check that passes, else the reason. tests/gpu runs those of most kernels on a device.
"""

from __future__ import annotations

import json
import re
import sys
import traceback
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from tests import forked_servers

Findings = dict[str, str | None]
"""By check: None if it passes, else the error in one line."""

Check = Callable[[], None]

ROOT = Path(__file__).parents[1]


def named_in(module: str) -> list[str]:
    """Return the names of the checks in tests/*module*.py: its public functions without parameters, except prepare."""
    source = (ROOT / "tests" / f"{module}.py").read_text()
    return [name for name in re.findall(r"^def ([a-z]\w+)\(\) -> None:", source, re.MULTILINE) if name != "prepare"]


def run(checks: Mapping[str, Check]) -> Findings:
    """Run every check, continuing after errors; tracebacks go to standard error."""
    found: Findings = {}
    for name, check in checks.items():
        try:
            check()
            found[name] = None
        except Exception as error:
            traceback.print_exc()
            found[name] = f"{type(error).__name__}: {error}"
    return found


def device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def findings(module: str, *arguments: str, **variables: str) -> Any:
    """Return what ``python -m MODULE ARGUMENTS`` prints as JSON in its last line, with the CPU engine's *variables*."""
    return _told(forked_servers.launch([module, *arguments], **variables))


def scripted(script: str) -> Any:
    """Return what *script* prints as JSON in its last line, run where stock SGLang is imported."""
    return _told(forked_servers.launch([], f"{script}\nraise SystemExit(0)"))


def _told(outcome: forked_servers.Outcome) -> Any:
    if outcome.code:
        raise RuntimeError(outcome.output[-4000:])  # not AssertionError, which some tests expect from SGLang
    return json.loads(outcome.output.splitlines()[-1])


def main(modules: list[str]) -> None:
    """Run the checks of each tests/*module*.py, after its prepare() if it has one, and print the results."""
    found: Findings = {}
    for module in modules:
        here = vars(import_module(f"tests.{module.replace('/', '.')}"))
        here.get("prepare", lambda: None)()
        found |= run({name: here[name] for name in named_in(module)})
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
