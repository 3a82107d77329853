"""Runs the whole suite as two pytest processes at once: tests that share running servers, and all others.

Each half keeps about one core busy. The output of the second half follows when the first is done. Exit code: 0 when
both passed. ``make test ARGS='...'`` is plain pytest instead.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

TESTS = Path("tests")
ENGINE = TESTS / "engine"
OWN_SERVERS = [str(ENGINE / f"test_{name}.py") for name in ("stepped", "released_internals")]
"""Engine tests that share no server and run beside those without one; as many as make both halves equally long."""


def main() -> int:
    """Run both halves; return pytest's exit code, the first half's when both failed."""
    without = [f"--ignore={path}" for path in OWN_SERVERS]
    shared = [str(ENGINE), *without, "-o", "cache_dir=.pytest_cache/engine"]
    folders = [path for path in sorted(TESTS.iterdir()) if any(path.glob("test_*.py")) and path != ENGINE]
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
    return first_code or second_code


def _pytest(arguments: list[str]) -> list[str]:
    return [sys.executable, "-m", "pytest", *arguments]


if __name__ == "__main__":
    raise SystemExit(main())
