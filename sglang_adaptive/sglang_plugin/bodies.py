"""Hashes of the bodies of hooked functions, read from SGLang's source files.

Nothing is imported, so this also works for CUDA-only modules and for a release that is only unpacked. `make bodies`
records the hashes of every supported release in ``bodies.json``.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

RECORD = Path(__file__).with_name("bodies.json")

_BRANCHES = (ast.If, ast.Try, ast.With)


def recorded() -> dict[str, dict[str, str]]:
    """Return the hashes of every hooked function, by its dotted path and by release."""
    found: dict[str, dict[str, str]] = json.loads(RECORD.read_text())
    return found


def changed(targets: Iterable[str]) -> list[str]:
    """Return the *targets* whose body in the installed SGLang matches no recorded release, or that have none now."""
    targets, record = tuple(targets), recorded()
    now = hashes(targets)
    known = [target for target in targets if target in now or target in record]
    return [target for target in known if now.get(target) not in record.get(target, {}).values()]


def hashes(targets: Iterable[str], root: Path | None = None) -> dict[str, str]:
    """Return a hash of each function or class, except those without a definition in SGLang's source.

    *root* is the folder that contains the package ``sglang``, by default the installed one. Comments, docstrings and
    layout do not count.
    """
    root = installed() if root is None else root
    found = ((target, definitions(target, root)) for target in targets)
    texts = {target: json.dumps([_plain(body) for body in bodies]) for target, bodies in found if bodies}
    return {target: hashlib.sha256(text.encode()).hexdigest()[:12] for target, text in texts.items()}


def installed() -> Path:
    """Return the folder that contains the installed package ``sglang``."""
    spec = find_spec("sglang")
    assert spec is not None and spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0]).parent


def definitions(target: str, root: Path) -> list[ast.stmt]:
    """Return the statements that define *target*, a dotted path; several for a property with a setter."""
    module, names = split(target, root)
    return _in_module(root, module, names) if module and names else []


def parameters(definition: ast.stmt) -> list[str]:
    """Return the names of a function's parameters in order, without ``*args`` and ``**kwargs``; none of a class."""
    if not isinstance(definition, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return []
    found = definition.args
    return [each.arg for each in (*found.posonlyargs, *found.args, *found.kwonlyargs)]


def split(target: str, root: Path) -> tuple[str, list[str]]:
    """Return the longest module in *target*, and the names after it."""
    parts = target.split(".")
    for end in range(len(parts), 0, -1):
        if file_of(root, ".".join(parts[:end])) is not None:
            return ".".join(parts[:end]), parts[end:]
    return "", parts


def file_of(root: Path, module: str) -> Path | None:
    """Return a module's file in the folder *root*, or None."""
    path = root.joinpath(*module.split("."))
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


@cache
def _statements(file: Path) -> tuple[ast.stmt, ...]:
    return tuple(_flat(ast.parse(file.read_text(encoding="utf-8")).body))


def _flat(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a module or class, including those inside conditions."""
    for statement in body:
        yield statement
        if isinstance(statement, _BRANCHES):
            for _, value in ast.iter_fields(statement):
                for part in value if isinstance(value, list) else ():
                    yield from _flat(part.body if isinstance(part, ast.ExceptHandler) else [part])


def _in_module(root: Path, module: str, names: list[str]) -> list[ast.stmt]:
    file = file_of(root, module)
    if file is None:
        return []
    first, *rest = names
    found = _defined(_statements(file), first)
    for statement in found if rest else ():
        if isinstance(statement, ast.ClassDef):
            return _in_class(root, module, statement, rest)
    if found:
        return [] if rest else found
    for source, name in _imported(_statements(file), first, module, file):
        if below := _in_module(root, source, [name, *rest]):
            return below
    return []


def _in_class(root: Path, module: str, cls: ast.ClassDef, names: list[str]) -> list[ast.stmt]:
    """Return the statements that define a class member, in the class or the first base that has it."""
    if found := _defined(_flat(cls.body), names[0]):
        return found if len(names) == 1 else []
    for base in cls.bases:
        if isinstance(base, ast.Name) and (found := _in_module(root, module, [base.id, *names])):
            return found
    return []


def _defined(statements: Iterable[ast.stmt], name: str) -> list[ast.stmt]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return [statement for statement in statements if isinstance(statement, kinds) and statement.name == name]


def _imported(statements: Iterable[ast.stmt], name: str, module: str, file: Path) -> Iterator[tuple[str, str]]:
    """Yield the modules from which a module imports *name*, and its name there."""
    package = module.split(".") if file.name == "__init__.py" else module.split(".")[:-1]
    for statement in statements:
        if isinstance(statement, ast.ImportFrom):
            start = package[: len(package) - statement.level + 1] if statement.level else []
            source = ".".join([*start, *filter(None, [statement.module])])
            yield from ((source, alias.name) for alias in statement.names if (alias.asname or alias.name) == name)


def _plain(node: Any) -> Any:
    """Return a syntax tree as lists without empty fields, so that every version of Python gives the same."""
    if isinstance(node, list):
        return [_plain(part) for part in node]
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = {name: value for name, value in ast.iter_fields(node) if value is not None and value != []}
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and ast.get_docstring(node) is not None:
        fields["body"] = node.body[1:]
    return [type(node).__name__, *([name, _plain(value)] for name, value in fields.items())]
