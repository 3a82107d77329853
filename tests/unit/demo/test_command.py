"""The demo's command line: what is refused before a server starts."""

from __future__ import annotations

import pytest

from sglang_adaptive.lab.demo import command, demo
from sglang_adaptive.lab.demo.servers import TITLES


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """Return the one line of a refusal."""
    with pytest.raises(SystemExit) as stop:
        command.main(argv)
    printed = capsys.readouterr()
    assert (stop.value.code, printed.out) == (2, "")
    (line,) = printed.err.splitlines()
    return line.removeprefix("sglang-adaptive demo: error: ")


@pytest.fixture(autouse=True)
def no_server_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        raise AssertionError("a bad command line got as far as the servers")

    monkeypatch.setattr(demo, "server_specs", fail)


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["--tokens", "15"], "--tokens 15: expected 16 to 512"),
        (["--tokens", "513"], "--tokens 513: expected 16 to 512"),
        (["--turns", "0", "--pair", "smollm2"], "--turns 0: expected 1 to "),
        (["--pair", "large"], "'large'"),
        (["--tokens", "many"], "invalid int value: 'many'"),
        (["--policy", "emma"], "--policy emma: expected " + " or ".join(TITLES)),
        (["--jsn", "x"], "--jsn"),
        (["extra"], "extra"),
    ],
)
def test_bad_arguments(capsys: pytest.CaptureFixture[str], argv: list[str], told: str) -> None:
    assert told in refused(capsys, *argv)
