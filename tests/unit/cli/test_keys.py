"""Invalid addresses, and servers that are gone or require a key: every command reports them in the same words."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sglang_adaptive import explain
from sglang_adaptive.cli import main
from sglang_adaptive.provenance import command_line
from tests.answering import answering
from tests.refusals import refused

LINE = "it asks for a key: give the right one with --api-key"


@pytest.fixture(scope="module")
def closed() -> Iterator[str]:
    with answering(401, b'{"error":"Unauthorized"}') as url:
        yield url


@pytest.mark.parametrize("command", ["explain", "calibrate", "audit", "chat", "doctor", "watch --once"])
@pytest.mark.parametrize("key", [[], ["--api-key", "wrong"]], ids=["none", "wrong"])
def test_the_same_line_from_every_command(
    closed: str, command: str, key: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command.split(), "--url", closed, *key]) == 1
    told = capsys.readouterr()
    shown = " ".join((told.out + told.err).split())  # a terminal of 80 columns wraps it
    assert closed in shown and shown.count(f": {LINE}") == shown.count("key: ") == 1


@pytest.mark.parametrize("key", ["two\nlines", "caf\u00e9"])
def test_a_key_that_http_does_not_allow_is_refused_and_not_shown(
    key: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SGLANG_API_KEY", key)
    told = refused(capsys, ["explain", "--url", "http://127.0.0.1:9"])
    assert told.endswith("the key has characters that HTTP does not allow; expected printable ASCII\n")
    assert key not in told


def test_white_space_around_a_key_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_API_KEY", "right\r\n")
    assert explain.parser().parse_args([]).api_key == "right"


def test_a_command_line_that_others_see_has_no_key() -> None:
    words = ["--url", "http://me:secret@host:1", "--api-key", "secret", "--admin-api-key=secret", "--json", "/tmp/x"]
    said = "sglang-adaptive audit --url http://host:1 --api-key KEY --admin-api-key=KEY --json x"
    assert command_line("audit", words) == said


@pytest.mark.parametrize(
    "words",
    [*(f"{name} --url" for name in ("explain", "watch", "calibrate", "doctor", "audit")),
     "audit --url http://h:1 --reference"],
)  # fmt: skip
@pytest.mark.parametrize("address", ["nonsense", "http://host/path"])
def test_an_address_that_is_none_is_called_so(words: str, address: str, capsys: pytest.CaptureFixture[str]) -> None:
    command, flag = words.split()[0], words.split()[-1]
    told = f"argument {flag}: {address!r} is not a server's address; expected one like http://127.0.0.1:30000"
    assert refused(capsys, [*words.split(), address]) == f"sglang-adaptive {command}: error: {told}\n"


@pytest.mark.parametrize("command", ["explain", "calibrate", "audit"])
def test_a_server_that_is_gone_is_called_so(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    told = refused(capsys, [command, "--url", "http://127.0.0.1:9"], code=1)
    assert "error: http://127.0.0.1:9: it does not answer (" in told
