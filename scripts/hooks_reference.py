"""Writes the table of hooks into docs/architecture.md from the rooms of sglang_plugin; ``--check`` only compares."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

from generated import DOCS, update

from sglang_adaptive.sglang_plugin.hooking import registry
from sglang_adaptive.sglang_plugin.hooking.hook import Process

ROOT = Path(__file__).parents[1]


def _tables() -> Iterator[str]:
    for process in Process:
        yield f"\n**{process.value}**\n"
        yield "| SGLang's function, below `sglang.srt` | | By | What it does there |\n|---|---|---|---|"
        for hook in registry.hooks(process):
            target = hook.target.removeprefix("sglang.srt.")
            yield f"| `{target}` | {hook.kind} | `{hook.function}` | {_purpose(hook.function)} |"


def _purpose(where: str) -> str:
    """Return the first line of the function's docstring, less the words that repeat where it is put."""
    module, name = where.split(":")
    file = ROOT / "sglang_adaptive" / "sglang_plugin" / f"{module.replace('.', '/')}.py"
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == name:
            line = (ast.get_docstring(node) or "").partition("\n")[0]
            start, colon, rest = line.partition(": ")
            told = rest if colon and start.startswith(("After", "Before", "Around", "Instead")) else line
            return told[:1].upper() + told[1:].replace("|", "\\|")
    return _purpose_of_import(where)


def _purpose_of_import(where: str) -> str:
    """Return the same of a class that the module only takes over from the layer below."""
    module, name = where.split(":")
    file = ROOT / "sglang_adaptive" / "sglang_plugin" / f"{module.replace('.', '/')}.py"
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and any(alias.name == name for alias in node.names):
            source = ROOT / f"{str(node.module).replace('.', '/')}.py"
            for found in ast.parse(source.read_text()).body:
                if isinstance(found, ast.ClassDef) and found.name == name:
                    return (ast.get_docstring(found) or "").partition("\n")[0]
    raise LookupError(where)


if __name__ == "__main__":
    sys.exit(update(DOCS / "architecture.md", {"hooks": _tables()}))
