"""What could not be tested for want of a program."""

from __future__ import annotations

import shutil

TOOLS = {"Chromium": ("chromium", "chromium-browser", "google-chrome"), "Prometheus": ("prometheus",)}
"""Programs that tests of the page and of the metrics need, by the names that tests look for."""


def left_out() -> str:
    """Return the last line of a run."""
    missing = [tool for tool, names in TOOLS.items() if not any(map(shutil.which, names))]
    if not missing:
        return f"no test was left out for want of {' or '.join(TOOLS)}"
    return f"tests that need {' and '.join(missing)} were LEFT OUT: not installed; on Debian: make test-tools"
