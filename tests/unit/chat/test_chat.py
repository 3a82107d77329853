"""Chat without a server: what is refused, and what is said of an answer."""

from __future__ import annotations

import io
import json
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from sglang_adaptive.cli import main
from sglang_adaptive.lab.chat import measured
from sglang_adaptive.lab.cpu_engine.server import free_port
from tests.refusals import refused


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["--url", "somewhere"], 2, "--url: 'somewhere'"),
        (["--tokens", "0"], 2, "--tokens: got '0'"),
        (["--temperature", "hot"], 2, "--temperature: got 'hot'"),
        (["--temperature", "2.5"], 2, "--temperature: got '2.5'"),
        (["--temperature", "nan"], 2, "--temperature: got 'nan'"),
        (["--url", f"http://127.0.0.1:{free_port()}"], 1, "refused"),
    ],
)
def test_refusals_of_one_line(words: list[str], code: int, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert told in refused(capsys, ["chat", *words], code)


BEGUN = "Paris is the capital of"
ENDS = {
    "between two events": b"",
    "in an event": b'40\r\ndata: {"choi',
    "before its size": b"4",
    "without the last event": b"0\r\n\r\n",
    "after the last event": b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n",
}
"""What the server still sends before it is gone."""


@contextmanager
def leaving(sent: bytes) -> Iterator[str]:
    """Serve a chat that begins its answer with BEGUN, sends *sent* and is gone; yield the address."""
    info = json.dumps({"internal_states": [{}]}).encode()
    event = b"data: %b\n\n" % json.dumps({"choices": [{"delta": {"content": BEGUN}}]}).encode()

    def serve() -> None:
        while listener.fileno() != -1:
            connection, _ = listener.accept()
            with connection:
                if connection.recv(1 << 16).startswith(b"GET"):
                    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(info), info))
                    continue
                listener.close()
                connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                connection.sendall(b"%x\r\n%b\r\n%b" % (len(event), event, sent))
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(1 << 16):  # what is unread at the end would reset the connection
                    pass

    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = threading.Thread(target=serve, daemon=True)
        serving.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        serving.join(10)


@pytest.mark.parametrize("how", ENDS)
def test_a_lost_server_is_told_in_a_line_of_its_own(
    how: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("Where is Paris?\nAnd Rome?\n"))
    with leaving(ENDS[how]) as url:
        assert main(["chat", "--url", url]) == 1
    said = capsys.readouterr()
    why = "Connection refused" if how == "after the last event" else "the answer broke off"
    told = f"sglang-adaptive chat: error: {url}: the server was lost: it does not answer ({why})\n"
    assert (said.out, said.err) == (f"{BEGUN}\n", told)


@pytest.mark.parametrize("rounds", [Counter(), Counter({0: 5, 3: 5})])
def test_what_an_answer_took_can_be_said_with_and_without_rounds(rounds: Counter[int]) -> None:
    said = measured(30, 2.0, rounds, cut=False)
    assert "30 tokens" in said and "15.0 tokens/s" in said
    assert said.endswith(", 3.00 tokens per round, 1.5 draft steps (0: 50%, 3: 50%)") is bool(rounds)
