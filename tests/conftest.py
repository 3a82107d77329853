"""Marks tests by folder, and reports what was skipped because a GPU or a program is missing."""

from __future__ import annotations

import gc
import os
import shutil
import signal
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# Example run time and generation time depend on the machine, not on the code.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

# PyTorch would take every core for models that keep only one busy, and pytest and the servers need the others.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell starts background jobs with SIGINT ignored, and every process started here would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

TESTS = Path(__file__).parent
NO_GPU = "needs a CUDA device; none here"
TOOLS = {"Chromium": ("chromium", "chromium-browser", "google-chrome"), "Prometheus": ("prometheus",)}
"""Programs that the page and metrics tests need, with the names that the tests look for."""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Turn off garbage collection during imports, then freeze the modules: they stay, so scanning them is wasted."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark ``tests/engine`` and ``tests/gpu``; skip the latter without a CUDA device."""
    for item in items:
        folder = item.path.relative_to(TESTS).parts[0]
        if folder in ("engine", "gpu"):
            item.add_marker(getattr(pytest.mark, folder))
    on_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if on_gpu and not _has_gpu():
        for item in on_gpu:
            item.add_marker(pytest.mark.skip(reason=NO_GPU))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Run all tests that start servers in one process; see `tests.turns`."""
    from tests.turns import Turns

    return Turns(config, log)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Report how many GPU tests did not run, next to pytest's own list of skips."""
    skipped = [r for r in terminalreporter.stats.get("skipped", []) if NO_GPU in str(r.longrepr)]
    if skipped:
        terminalreporter.write_line(f"{len(skipped)} GPU tests were skipped: no CUDA device here")


def pytest_unconfigure(config: pytest.Config) -> None:
    """End with a line on what could not be tested because a program is missing; pytest-xdist workers print nothing."""
    if not hasattr(config, "workerinput") and not config.option.collectonly:
        missing = [tool for tool, names in TOOLS.items() if not any(map(shutil.which, names))]
        told = f"tests that need {' and '.join(missing)} were LEFT OUT: not installed; on Debian: make test-tools"
        print(told if missing else f"no test was left out for want of {' or '.join(TOOLS)}")


def _has_gpu() -> bool:
    import torch  # takes seconds to import, and only GPU tests need the answer

    return bool(torch.cuda.is_available())
