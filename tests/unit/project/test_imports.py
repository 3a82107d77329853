"""Imports point downward, and SGLang stays behind the two packages that adapt to it."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[3] / "sglang_adaptive"
HEIGHT = {"policy": 0, "runtime": 1, "helper": 2, "serve_cpu": 3, "sglang_plugin": 3, "lab/cpu_engine": 5, "lab": 6}
TOP = 4
"""Layer of the product's commands. Only the lab is above it, and nothing outside the lab imports the lab."""
PURE = ("policy", "runtime", "helper")
ADAPTERS = ("sglang_plugin", "lab/cpu_engine")
FILES = sorted(PACKAGE.rglob("*.py"))


def layer(parts: tuple[str, ...]) -> str:
    """Return the layer of a module path below the package; single files are helpers, except commands."""
    if parts[:2] == ("lab", "cpu_engine"):
        return "lab/cpu_engine"
    if len(parts) > 1 or (PACKAGE / parts[0]).is_dir():
        return parts[0]
    name = parts[0].removesuffix(".py")
    if name == "serve_cpu":
        return name
    return "top" if name in ("cli", "__init__", "validate", "doctor", "watch", "explain", "calibrate") else "helper"


def imported(path: Path) -> Iterator[tuple[str, int]]:
    here = ("sglang_adaptive", *path.relative_to(PACKAGE).parent.parts)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = ".".join(here[: len(here) - node.level + 1]) if node.level else ""
            base = f"{start}.{node.module}".strip(".") if node.module else start
            yield base, node.lineno
            if base == "sglang_adaptive":
                names = [alias.name for alias in node.names if alias.name != "__version__"]
                yield from ((f"{base}.{name}", node.lineno) for name in names)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_of_a_file_obey_the_layers(path: Path) -> None:
    own = layer(path.relative_to(PACKAGE).parts)
    for module, line in imported(path):
        root, *rest = module.split(".")
        where = f"{path.relative_to(PACKAGE)}:{line} imports {module}"
        if root == "sglang_adaptive" and rest:
            other = layer(tuple(rest))
            assert HEIGHT.get(other, TOP) <= HEIGHT.get(own, TOP), f"{where}, which lies above"
        if root == "sglang":
            assert own in ADAPTERS, f"{where}, which only {ADAPTERS} may"
        if own in PURE and root != "sglang_adaptive":
            assert root in sys.stdlib_module_names, f"{where}, which is not the standard library"


def imported_when_loaded(path: Path) -> set[Path]:
    """Return the files of the package that importing its file *path* requires, without those only for types."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("sglang_adaptive"):
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    files = {PACKAGE.parent.joinpath(*name.split(".")).with_suffix(".py") for name in names}
    return {file for file in files if file.exists()}


def test_no_file_imports_itself_through_another() -> None:
    """Imports inside functions count as well."""
    files = [path for path in FILES if path.name != "__init__.py"]
    graph = {path: imported_when_loaded(path) for path in files}
    assert PACKAGE / "policy" / "throughput" / "rows.py" in graph[PACKAGE / "policy" / "throughput" / "choice.py"]
    assert set(graph) == set(TopologicalSorter(graph).static_order()), "graphlib names the circle otherwise"


def test_every_layer_is_looked_at() -> None:
    seen = {layer(path.relative_to(PACKAGE).parts) for path in FILES}
    assert {"policy", "runtime", "sglang_plugin", "lab", "lab/cpu_engine", "top"} <= seen
    assert "sglang_adaptive.policy.observation" in [module for module, _ in imported(PACKAGE / "policy" / "base.py")]
