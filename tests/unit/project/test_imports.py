"""Imports point downward, and SGLang stays behind the two packages that adapt to it."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[3] / "sglang_adaptive"
HEIGHT = {"policy": 0, "runtime": 1, "helper": 2, "sglang_plugin": 3, "cpu_engine": 3}
TOP = 4
PURE = ("policy", "runtime", "helper")
ADAPTERS = ("sglang_plugin", "cpu_engine")
ROOMS = {
    "config": {"errors"},
    "ema": {"base", "observation", "errors", "config"},
    "profile": {"errors", "config"},
    "throughput": {"base", "observation", "telemetry", "errors", "config", "profile"},
    "vote": set(),
}
"""What each room of ``policy`` may import beside itself."""
INNER = {
    "acceptance": set(),
    "cost": {"profile"},
    "choice": {"acceptance", "cost", "telemetry"},
    "budgets": {"acceptance", "cost", "observation"},
}
"""The same for the rooms of ``policy/throughput``."""
FILES = sorted(PACKAGE.rglob("*.py"))


def layer(parts: tuple[str, ...]) -> str:
    """The layer of a module path below the package; single files beside the command line are helpers."""
    if len(parts) > 1 or (PACKAGE / parts[0]).is_dir():
        return parts[0]
    return "top" if parts[0].removesuffix(".py") in ("cli", "__init__") else "helper"


def imported(path: Path) -> Iterator[tuple[str, int]]:
    """Yield every imported module with its line, wherever in the file and under whatever condition it is."""
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


def rooms_imported(folder: Path) -> set[str]:
    """Names, below ``policy``, of what the files of *folder* import: rooms, inner rooms, modules at the root."""
    found = set()
    for path in folder.rglob("*.py"):
        for module, _ in imported(path):
            parts = module.split(".")
            if parts[:2] == ["sglang_adaptive", "policy"] and len(parts) > 2:
                inner = parts[2] == "throughput" and len(parts) > 3 and parts[3] in INNER
                found.add(parts[3] if inner else parts[2])
    return found


def test_every_room_of_policy_is_listed() -> None:
    rooms = {path.parent.name for path in (PACKAGE / "policy").glob("*/__init__.py")}
    assert rooms == set(ROOMS), "say in ROOMS here, and in the docstring of the room, what it may import"


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_of_policy_imports_what_its_docstring_says(room: str) -> None:
    inner = set(INNER) if room == "throughput" else set()
    beyond = rooms_imported(PACKAGE / "policy" / room) - (ROOMS[room] | {room} | inner)
    assert not beyond, f"policy/{room} imports {sorted(beyond)}; ROOMS here and the docstring of the room allow it not"


@pytest.mark.parametrize("room", INNER)
def test_a_room_of_the_throughput_policy_imports_what_its_docstring_says(room: str) -> None:
    beyond = rooms_imported(PACKAGE / "policy" / "throughput" / room) - (INNER[room] | {room})
    assert not beyond, f"throughput/{room} imports {sorted(beyond)}; INNER here and its docstring allow it not"


def test_every_layer_is_looked_at() -> None:
    seen = {layer(path.relative_to(PACKAGE).parts) for path in FILES}
    assert {"policy", "runtime", "sglang_plugin", "cpu_engine", "top"} <= seen
    assert ("sglang_adaptive.policy.observation", 3) in [
        (module, 3) for module, _ in imported(PACKAGE / "policy" / "base.py")
    ]


def test_pure_layers_load_without_heavy_packages() -> None:
    modules = [
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        for path in FILES
        if layer(path.relative_to(PACKAGE).parts) in PURE and path.name != "__init__.py"
    ]
    code = (
        "import importlib, sys\n"
        f"for name in {modules!r}: importlib.import_module(name)\n"
        "print(sorted({'torch', 'sglang', 'numpy', 'triton'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
