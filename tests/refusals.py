"""How a command refuses what it was given, in this process."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from sglang_adaptive.cli import main


def refused(capsys: pytest.CaptureFixture[str], words: Iterable[str], code: int = 2) -> str:
    """Return the line that a command prints for *words*; fail unless it prints that alone and exits with *code*."""
    try:
        ended: object = main([*words])
    except SystemExit as end:  # argparse's own way to end
        ended = end.code
    said = capsys.readouterr()
    assert (ended, said.out, said.err.count("\n")) == (code, "", 1), said.err
    return said.err
