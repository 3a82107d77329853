"""Runs the whole suite as two pytest processes at once: tests that share running servers, and all others.

Each half keeps about one core busy. The output of the second half follows when the first is done. Exit code: 0 when
both passed. The last line says which programs were missing, so that their tests were left out. ``make test ARGS='...'``
is plain pytest instead.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

TESTS = Path("tests")
ENGINE = TESTS / "engine"
OWN_SERVERS = [str(ENGINE / f"test_{name}.py") for name in ("stepped", "released_internals")]
"""Engine tests that share no server and run beside those without one; as many as make both halves equally long."""

TOOLS = {"Chromium": ("chromium", "chromium-browser", "google-chrome"), "Prometheus": ("prometheus",)}
"""Programs that tests of the page and of the metrics need, by the names that tests look for."""


def main() -> int:
    """Run both halves; return pytest's exit code, the first half's when both failed."""
    without = [f"--ignore={path}" for path in OWN_SERVERS]
    shared = [str(ENGINE), *without, "-o", "cache_dir=.pytest_cache/engine"]
    folders = [path for path in sorted(TESTS.iterdir()) if any(path.rglob("test_*.py")) and path != ENGINE]
    others = [*map(str, folders), *OWN_SERVERS]
    with tempfile.TemporaryFile() as said:
        second = subprocess.Popen(_pytest(others), stdout=said, stderr=said)
        try:
            first_code = subprocess.run(_pytest(shared), check=False).returncode
            print(f"\nthe other half ({', '.join(others)}):", flush=True)
            second_code = second.wait()
        except KeyboardInterrupt:
            second.wait()  # it was interrupted as well
            return 130
        said.seek(0)
        sys.stdout.buffer.write(said.read())
    sys.stdout.flush()
    print(_left_out())
    return first_code or second_code


def _left_out() -> str:
    """Return a line on what could not be tested for want of a program."""
    missing = [tool for tool, names in TOOLS.items() if not any(map(shutil.which, names))]
    if not missing:
        return f"no test was left out for want of {' or '.join(TOOLS)}"
    return f"tests that need {' and '.join(missing)} were LEFT OUT: not installed; on Debian: make test-tools"


def _pytest(arguments: list[str]) -> list[str]:
    return [sys.executable, "-m", "pytest", *arguments]


if __name__ == "__main__":
    raise SystemExit(main())
