"""``sglang-adaptive demo``: parses, runs, and returns an exit code."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from sglang_adaptive.lab.demo.demo import FAILED, Demo
from sglang_adaptive.lab.demo.options import TINY, parse
from sglang_adaptive.lab.demo.options import parser as parser
from sglang_adaptive.lab.demo.progress import Progress
from sglang_adaptive.lab.demo.results import DemoError, UsageError
from sglang_adaptive.signals import Interrupted

BAD_USAGE = 2


def main(argv: Sequence[str]) -> int:
    """Run the demo; returns the exit code."""
    try:
        options = parse(argv)
    except UsageError as error:
        print(f"sglang-adaptive demo: {error}", file=sys.stderr)
        return BAD_USAGE
    folder = Path(tempfile.mkdtemp(prefix="sglang-adaptive-demo-"))
    progress = Progress(sys.stderr)
    try:
        return _demo_of(options.pair)(options, list(argv), folder, progress).run()
    except Interrupted as stop:
        progress.clear()
        print("sglang-adaptive demo: interrupted; every server was stopped", file=sys.stderr)
        shutil.rmtree(folder, ignore_errors=True)
        return stop.exit_code
    except DemoError as error:
        progress.clear()
        tail = f"\n{error.detail}" if error.detail else ""
        print(f"sglang-adaptive demo: {error}{tail}\nThe logs are in {folder}", file=sys.stderr)
        return FAILED


def _demo_of(pair: str) -> type[Demo]:
    if pair == TINY:
        return Demo
    from sglang_adaptive.lab.demo.real_text.demo import RealTextDemo

    return RealTextDemo
