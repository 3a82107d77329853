"""A pytest plugin that writes each test's result to a file at once: a process that is ended leaves what it found.

The environment variable FILE names the file. It gets one JSON object per line: ``{"collected": TEST}``, ``{"began":
TEST}``, ``{"ended": TEST, "outcome": ..., "seconds": ..., "lines": [...], "figures": {...}}``, and ``{"broken": FILE,
"lines": [...]}`` for a file that cannot be imported.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

FILE = "GPU_TESTS_RECORD"
PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
LINES, WIDTH = 25, 300
"""The last lines that are kept of what a failure says, and of what the test printed; the length of each."""

_ended: dict[str, dict[str, Any]] = {}


def last(text: str, lines: int = LINES) -> list[str]:
    """Return the last lines of *text*."""
    return [line[:WIDTH] for line in text.rstrip().splitlines()[-lines:]]


def pytest_itemcollected(item: pytest.Item) -> None:
    _write(collected=item.nodeid)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        _write(broken=report.nodeid, lines=last(report.longreprtext))


def pytest_runtest_logstart(nodeid: str) -> None:
    _ended[nodeid] = {"outcome": PASSED, "seconds": 0.0}
    _write(began=nodeid)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add a phase of a test: setup, call or teardown."""
    found = _ended[report.nodeid]
    found["seconds"] += report.duration
    if report.failed:
        found |= {"outcome": FAILED, "lines": [*last(report.longreprtext), *last(report.capstdout, 10)]}
    elif report.skipped and found["outcome"] == PASSED:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
        found |= {"outcome": SKIPPED, "lines": last(reason.removeprefix("Skipped: "))}
    if report.user_properties:
        found["figures"] = dict(report.user_properties)


def pytest_runtest_logfinish(nodeid: str) -> None:
    _write(ended=nodeid, **_ended.pop(nodeid))


def _write(**event: Any) -> None:
    with Path(os.environ[FILE]).open("a", encoding="utf-8") as file:
        file.write(json.dumps(event, default=str) + "\n")
