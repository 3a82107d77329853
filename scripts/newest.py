"""Tests this package on another SGLang release, by default the newest in the registry: ``make newest``.

    newest.py [RELEASE] [ARGUMENTS OF PYTEST]

The release is installed into its own virtual environment, ``.venv-newest`` or ``.venv-RELEASE``. The doctor reports
what it lacks and which hooked functions have changed. The tests run regardless; the exit code is theirs.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

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
    _install(python, next(venv.glob("lib/python*/site-packages/sglang-*.dist-info/METADATA")))
    subprocess.run([venv / "bin" / "sglang-adaptive", "doctor"], cwd=ROOT, check=False)
    return subprocess.run([python, "-m", "pytest", *(arguments or ["-n", "2"])], cwd=ROOT, check=False).returncode


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
