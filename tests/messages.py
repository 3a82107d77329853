"""Finds every message that the package's source can print: log lines, refusals, reasons and errors.

Also those that docs/troubleshooting.md lists. In a message, ``...`` stands for text that is only known at run time.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "sglang_adaptive"
PAGE = PACKAGE.parent / "docs" / "troubleshooting.md"
GAP = "..."
LOG_CALLS = ("info", "warning", "error", "exception", "critical")
SAY_CALLS = (
    *("_refuse", "problem", "failed", "error", "_warn", "_degrade", "unknown_key", "abort"),
    *("step_down", "FINISH_ABORT", "raise_alarm"),
)
"""Functions of the package whose arguments are printed as they are."""
REASONS = {
    "sglang_plugin/launch/activation.py": ("cannot_adapt", "resolve_once"),
    "sglang_plugin/repairs.py": ("hybrid_obstacle",),
    "sglang_plugin/workers/choice.py": ("unsupported_reason", "fixed_block_reason"),
    "sglang_plugin/stages/attention_dp.py": ("unsupported_reason",),
    "sglang_plugin/stages/audit_scheduler.py": ("words",),
    "sglang_plugin/contract.py": ("problem", "verdict"),
    "sglang_plugin/admin/handlers.py": ("problem", "extend_problem"),
    "sglang_plugin/admin/route.py": ("_problem",),
    "sglang_plugin/launch/checkup.py": ("_cannot_resolve",),
    "doctor.py": ("_plugin", "_end"),
    "lab/chat.py": ("_answer",),
    "lab/demo/results.py": ("failures",),
    "watch.py": ("read", "_in_words", "compared"),
    "client.py": ("in_words",),
}
"""Functions that return or record a reason for a message that is printed elsewhere."""
LEAST_LETTERS = 7
"""A text with fewer letters is only a frame, such as ``...: error: ...``."""
INTERNAL = ("lab/cpu_engine/kernels", "lab/cpu_engine/stand_in", "lab/cpu_engine/architectures")
"""Shape checks of the CPU engine's kernels: if a user ever sees one, it is a bug in this package."""


@cache
def messages() -> dict[str, str]:
    """Return every message of the package with its place in the source, without the frames around other messages."""
    found: dict[str, str] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        if not name.startswith(INTERNAL):
            found |= _Finder(name, ast.parse(path.read_text())).all()
    return {text: where for text, where in found.items() if _letters(text) >= LEAST_LETTERS}


@cache
def documented() -> list[tuple[str, bool]]:
    """Return the messages of the page in order, each with whether the page calls it a fault of this package."""
    found, listed = [], False
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        listed = line.startswith("|") and (listed or cells[0] == "Message")
        if listed:
            found += [(message, "report it" in cells[-1]) for message in re.findall(r"`([^`]+)`", cells[0])]
    return found


def pattern(message: str) -> re.Pattern[str]:
    """Return a pattern that matches the message in a text; a gap in one may be text in the other."""
    return re.compile(".*".join(re.escape(part.strip()) for part in message.split(GAP)), re.S)


class _Finder:
    """The messages of one file."""

    def __init__(self, name: str, tree: ast.Module) -> None:
        self.name, self.tree = name, tree
        self.constants = _assigned(tree.body)
        self.scope: dict[str, list[ast.expr]] = {}

    def all(self) -> Iterator[tuple[str, str]]:
        functions = [node for node in ast.walk(self.tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
        for function in functions:
            self.scope = _assigned(function.body)
            for node in ast.walk(function):
                if isinstance(node, ast.Call):
                    yield from ((text, f"{self.name}:{node.lineno}") for text in self._of_call(node))
            if function.name in REASONS.get(self.name, ()):
                yield from ((text, f"{self.name}:{function.lineno}") for text in self._reasons(function))

    def _of_call(self, call: ast.Call) -> list[str]:
        name = _name(call.func)
        if isinstance(call.func, ast.Attribute) and _name(call.func.value) == "logger" and name in LOG_CALLS:
            return [re.sub(r"%[sdr]|%\.\df", GAP, text) for text in self._texts(call.args[0])]
        if name in ("ConfigError", "ProfileError") and len(call.args) >= 4:
            problems, expected = (self._texts(argument) or [_word(argument)] for argument in call.args[2:4])
            return [f"{problem}; expected {what}" for problem in problems for what in expected]
        if name == "print" and any(word.arg == "file" for word in call.keywords):
            return self._texts(call.args[0])
        if name == "Check" and _name(call.args[1]) in ("PROBLEM", "NOTE"):
            return self._texts(call.args[2])
        if name in SAY_CALLS or (name.endswith(("Error", "NotReady", "Rejected")) and name[0].isupper()):
            return [text for argument in call.args for text in self._texts(argument)]
        return []

    def _texts(self, node: ast.expr, depth: int = 0) -> list[str]:
        """Return the possible texts of *node*; empty if nothing of it is known here."""
        if isinstance(node, ast.Constant):
            return [node.value] if isinstance(node.value, str) and " " in node.value else []
        if isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else GAP for part in node.values]
            text = "".join(map(str, parts))
            return [text] if " " in text.replace(GAP, "") else []
        if isinstance(node, ast.IfExp):
            return self._texts(node.body, depth) + self._texts(node.orelse, depth)
        if isinstance(node, ast.Name) and depth < 2:
            values = self.scope.get(node.id) or self.constants.get(node.id) or []
            return [text for value in values for text in self._texts(value, depth + 1)]
        return []

    def _reasons(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
        skipped = ast.get_docstring(function, clean=False)
        inside = {id(part) for node in ast.walk(function) if isinstance(node, ast.JoinedStr) for part in node.values}
        for node in ast.walk(function):
            if id(node) not in inside and isinstance(node, (ast.Constant, ast.JoinedStr)):
                yield from (text for text in self._texts(node) if text != skipped)


def _letters(text: str) -> int:
    """Return how many letters of *text* carry meaning; an option's name alone carries none."""
    return sum(character.isalpha() for character in re.sub(r"^--[\w-]+:? \.\.\.$", "", text))


def _assigned(body: list[ast.stmt]) -> dict[str, list[ast.expr]]:
    found: dict[str, list[ast.expr]] = {}
    for statement in body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    pairs = [(target, node.value)]
                    if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                        pairs = list(zip(target.elts, node.value.elts, strict=True))
                    for name, value in pairs:
                        if isinstance(name, ast.Name):
                            found.setdefault(name.id, []).append(value)
    return found


def _word(node: ast.expr) -> str:
    """Return a constant that is a single word, else the gap that stands for unknown text."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else GAP


def _name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
