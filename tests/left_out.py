"""Reports what could not be tested because a program is missing."""

from __future__ import annotations

import shutil

TOOLS = {"Chromium": ("chromium", "chromium-browser", "google-chrome"), "Prometheus": ("prometheus",)}
"""Programs that the page and metrics tests need, with the names that the tests look for."""


def left_out() -> str:
    missing = [tool for tool, names in TOOLS.items() if not any(map(shutil.which, names))]
    if not missing:
        return f"no test was left out for want of {' or '.join(TOOLS)}"
    return f"tests that need {' and '.join(missing)} were LEFT OUT: not installed; on Debian: make test-tools"
