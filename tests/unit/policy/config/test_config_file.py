"""Files that are no configuration: each is refused in one line, and soon."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sglang_adaptive.policy.config.config_file import read_object
from sglang_adaptive.policy.errors import ConfigError


def refusal(path: Path) -> str:
    with pytest.raises(ConfigError) as refused:
        read_object(path)
    return str(refused.value)


def test_what_is_no_file_is_said_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, what in ((tmp_path, "is a directory"), (tmp_path / "pipe", "is not a regular file")):
        line = refusal(path)
        assert line.startswith(f"{path}: {what}; expected ") and line.count("; expected ") == 1


def test_a_pipe_that_takes_the_file_s_place_keeps_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    regular, pipe = tmp_path / "config.json", tmp_path / "pipe"
    regular.write_text("{}")
    os.mkfifo(pipe)
    found = os.stat(regular)
    with monkeypatch.context() as patched:
        patched.setattr(os, "stat", lambda path: found)  # what was there a moment ago
        line = refusal(pipe)
    assert "is not a regular file" in line


@pytest.mark.timeout(60)  # where each key was looked up among all others it took minutes
def test_a_repeated_key_among_many_is_found_in_one_pass(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text("{" + ",".join([*(f'"k{index}":0' for index in range(80_000)), '"last":0', '"last":0']) + "}")
    assert f"{path}: last: the key is given more than once" in refusal(path)
