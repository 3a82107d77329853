"""Tests this package on another SGLang release, by default the newest in the registry: ``make newest``.

    newest.py [RELEASE] [ARGUMENTS OF PYTEST]

The release is installed into its own virtual environment, ``.venv-newest`` or ``.venv-RELEASE``. The doctor reports
what it lacks and which hooked functions have changed; ``hooked.diff`` in that folder shows their changes since the
release in ``.venv``. The tests run regardless; the exit code is theirs.
"""

from __future__ import annotations

import ast
import copy
import difflib
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from sglang_adaptive.sglang_plugin import bodies, hooks
from sglang_adaptive.sglang_plugin.hooks import Process

ROOT = Path(__file__).parents[1]
FROM_NVIDIA = "cuda-tile"
"""SGLang 0.5.22 pins a version that only NVIDIA's index has. No test without a GPU loads it."""


def main(release: str, arguments: list[str]) -> int:
    """Return the exit code of the tests."""
    venv = ROOT / f".venv-{release or 'newest'}"
    python = str(venv / "bin" / "python")
    if not venv.exists():
        _run("uv", "venv", "--quiet", "--python", sys.executable, str(venv))
    wanted = f"sglang=={release}" if release else "sglang"
    _run("uv", "pip", "install", "--quiet", "--upgrade", "--no-deps", "--python", python, wanted)
    metadata = next(venv.glob("lib/python*/site-packages/sglang-*.dist-info/METADATA"))
    _install(python, metadata)
    subprocess.run([venv / "bin" / "sglang-adaptive", "doctor"], cwd=ROOT, check=False)
    lines = list(differences(bodies.installed(), metadata.parents[1]))
    (venv / "hooked.diff").write_text("".join(f"{line}\n" for line in lines))
    print(f"{venv.name}/hooked.diff: {len(lines)} lines", flush=True)
    return subprocess.run([python, "-m", "pytest", *(arguments or ["-n", "2"])], cwd=ROOT, check=False).returncode


def differences(old: Path, new: Path) -> Iterator[str]:
    """Yield the changes of each hooked function between two folders with SGLang, without comments and docstrings.

    Of a function that is gone, the functions of its module with the same body, and the files that define its name.
    """
    for hook in hooks.hooks(*Process):
        before, after = (_lines(hook.target, root) for root in (old, new))
        if after or not before:
            yield from difflib.unified_diff(before, after, hook.named, hook.target, lineterm="")
        else:
            yield from (f"--- {hook.named}", "+++ gone", *_traces(hook.target, before, new))


def _traces(target: str, before: Sequence[str], new: Path) -> Iterator[str]:
    """Yield where a function with the lines *before* may be in the folder *new*."""
    name = target.rpartition(".")[2]
    module, _ = bodies.split(target, new)
    file = bodies.file_of(new, module)
    for found in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if file else ():
        if isinstance(found, _FUNCTIONS) and _of([found])[1:] == before[1:]:
            yield f"# the same body: {found.name} in {file.relative_to(new)}"
    defined = re.compile(rf"^\s*(?:async def|def|class) {name}\b", re.MULTILINE)
    yield from (
        f"# the same name: in {path}" for path, text in _texts(new).items() if name in text and defined.search(text)
    )


@cache
def _texts(root: Path) -> dict[Path, str]:
    paths = sorted(root.glob("sglang/srt/**/*.py"))
    return {path.relative_to(root): path.read_text(encoding="utf-8") for path in paths}


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def _lines(target: str, root: Path) -> list[str]:
    return _of(bodies.definitions(target, root))


def _of(definitions: Sequence[ast.stmt]) -> list[str]:
    found = []
    for definition in definitions:
        if isinstance(definition, (*_FUNCTIONS, ast.ClassDef)) and ast.get_docstring(definition) is not None:
            definition = copy.copy(definition)
            definition.body = definition.body[1:] or [ast.Pass()]
        found += ast.unparse(definition).splitlines()
    return found


def _install(python: str, metadata: Path) -> None:
    """Install this package beside the SGLang of *metadata*, with that release's requirements and otherwise our pins."""
    release = metadata.parent.name.split("-")[1].removesuffix(".dist")
    with tempfile.TemporaryDirectory() as folder:
        constraints, overrides = Path(folder, "constraints.txt"), Path(folder, "overrides.txt")
        pins = (ROOT / "constraints.txt").read_text().splitlines()
        its_own = {_name(line) for line in _pinned(metadata.read_text())} | {"sglang"}
        constraints.write_text("\n".join(line for line in pins if _name(line) not in its_own))
        kept = [line for line in pins if _name(line) == FROM_NVIDIA]
        overrides.write_text("\n".join([(ROOT / "overrides.txt").read_text(), f"sglang=={release}", *kept]))
        _run(
            *("uv", "pip", "install", "--quiet", "--python", python, "--prerelease=allow"),
            *("--index-strategy", "unsafe-best-match", "--constraints", str(constraints)),
            *("--override", str(overrides), "--editable", f"{ROOT}[test,dev,docs]"),
        )


def _pinned(metadata: str) -> Iterator[str]:
    """Yield a package's requirements that pin one version, except those of its extras."""
    for line in metadata.splitlines():
        if line.startswith("Requires-Dist: ") and "==" in line.split(";")[0] and "extra ==" not in line:
            yield line.removeprefix("Requires-Dist: ")


def _name(requirement: str) -> str:
    return re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", requirement, maxsplit=1)[0]).lower()


def _run(*command: str) -> None:
    subprocess.run(command, check=True)


if __name__ == "__main__":
    release, *arguments = sys.argv[1:] or [""]
    sys.exit(main(release, arguments))
