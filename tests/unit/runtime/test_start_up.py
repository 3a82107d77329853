"""Progress messages at start-up."""

from __future__ import annotations

import threading

from sglang_adaptive.runtime.states import Progress


def test_progress_says_what_is_being_done_until_its_end() -> None:
    lines: list[str] = []
    said = threading.Event()

    def say(line: str) -> None:
        lines.append(line)
        said.set()

    with Progress(say, seconds=0.001) as progress:
        for what in ("7 steps", "5 steps"):
            progress.now(what)
            while not lines or not lines[-1].startswith(what):
                assert said.wait(60)
                said.clear()
    count = len(lines)
    assert not progress._thread.is_alive()
    assert len(lines) == count
    assert lines[-1].endswith(" s")
