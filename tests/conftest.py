"""Marks tests by their folder, and says what was left out for want of a GPU or of a program."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.left_out import left_out
from tests.supervisor import pytest_cmdline_main as pytest_cmdline_main

# How long an example takes, or takes to be drawn, says something about the machine, not about the code.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

# PyTorch would take every core for models that keep one busy, beside a process of pytest and servers that want them.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell starts what runs in its background deaf to Ctrl-C, and every process started here would be deaf as well.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

TESTS = Path(__file__).parent
NO_GPU = "needs a CUDA device; none here"


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage while modules are imported, nor in them later: they stay, and are gone through in vain."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark ``tests/engine`` and ``tests/gpu``; skip the latter on a machine without a CUDA device."""
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
    """Let one process run every test that starts servers; see `tests.turns`."""
    from tests.turns import Turns

    return Turns(config, log)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many GPU tests did not run, beside pytest's own list of skips."""
    skipped = [r for r in terminalreporter.stats.get("skipped", []) if NO_GPU in str(r.longrepr)]
    if skipped:
        terminalreporter.write_line(f"{len(skipped)} GPU tests were skipped: no CUDA device here")


def pytest_unconfigure(config: pytest.Config) -> None:
    """End with a line on what could not be tested for want of a program; workers of pytest-xdist say nothing."""
    if not hasattr(config, "workerinput") and not config.option.collectonly:
        print(left_out())


def _has_gpu() -> bool:
    import torch  # seconds to import, and only GPU tests need the answer

    return bool(torch.cuda.is_available())
