"""Writes the table of hooked functions into docs/architecture.md from hooks.py; ``--check`` only compares."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

from generated import DOCS, update

from sglang_adaptive.sglang_plugin import hooks

ROOT = Path(__file__).parents[1]
GROUPS = (
    ("Every process, from the start", hooks.DOORS),
    ("Launcher, once the server is asked to be adaptive", hooks.LAUNCHER[len(hooks.EVERY_PROCESS) :]),
    ("Launcher and every child of an adaptive server", hooks.EVERY_PROCESS),
    ("Scheduler of an adaptive server", hooks.SCHEDULER),
    ("The same with a CUDA device", hooks.ON_CUDA),
    ("The same with SGLang's plan stream on", hooks.PLAN_STREAM),
    ("The same with the early plan on", hooks.EARLY_PLAN),
)


def _tables() -> Iterator[str]:
    for title, group in GROUPS:
        yield f"\n**{title}**\n"
        yield "| SGLang's function, below `sglang.srt` | | By | What it does there |\n|---|---|---|---|"
        for hook in group:
            target = hook.target.removeprefix("sglang.srt.")
            yield f"| `{target}` | {hook.kind} | `{hook.where}` | {_purpose(hook.where)} |"


def _purpose(where: str) -> str:
    """Return the first line of the function's docstring, less the words that repeat where it is put."""
    module, name = where.split(":")
    file = ROOT / "sglang_adaptive" / "sglang_plugin" / f"{module.replace('.', '/')}.py"
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == name:
            line = (ast.get_docstring(node) or "").partition("\n")[0]
            start, colon, rest = line.partition(": ")
            told = rest if colon and start.startswith(("After", "Before", "Around", "In the place")) else line
            return told[:1].upper() + told[1:].replace("|", "\\|")
    return _purpose_of_import(where)


def _purpose_of_import(where: str) -> str:
    """Return the same of a class that the module only takes over from the layer below."""
    module, name = where.split(":")
    file = ROOT / "sglang_adaptive" / "sglang_plugin" / f"{module}.py"
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and any(alias.name == name for alias in node.names):
            source = ROOT / f"{str(node.module).replace('.', '/')}.py"
            for found in ast.parse(source.read_text()).body:
                if isinstance(found, ast.ClassDef) and found.name == name:
                    return (ast.get_docstring(found) or "").partition("\n")[0]
    raise LookupError(where)


if __name__ == "__main__":
    sys.exit(update(DOCS / "architecture.md", {"hooks": _tables()}))
