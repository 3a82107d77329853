"""How the client interprets a server's answers."""

from __future__ import annotations

from typing import Any

import pytest

from sglang_adaptive.client import Client, RequestError
from tests.answering import Told, answering


def test_replicas_keep_their_place_in_whatever_order_they_answer() -> None:
    states = [{"adaptive": {"dp_rank": rank, "current_steps": steps}} for rank, steps in ((2, 7), (0, 1), (1, 3))]
    found = Told({"internal_states": states}).server_info()["internal_states"]
    assert [state["adaptive"]["current_steps"] for state in found] == [1, 3, 7]


@pytest.mark.parametrize("answer", [{"internal_states": [{}, {}]}, {"internal_states": ["?"]}, {}, "hello", [1]])
def test_answers_of_other_servers_are_handed_on(answer: Any) -> None:
    assert Told(answer).server_info() == answer


WRONG = (
    *("127.0.0.1:30000", "ftp://h", "http://", "http://h:99999", "http://h:0", "http://h:x", "http://[::1"),
    *("http://h/path", "http://h?key=1", "http://foo..bar:30000", f"http://{'a' * 64}.org"),
)


@pytest.mark.parametrize("url", WRONG)
def test_an_address_that_is_none_is_refused_with_one_line(url: str) -> None:
    with pytest.raises(ValueError) as refusal:
        Client.from_url(url)
    assert str(refusal.value) == f"{url!r} is not a server's address; expected one like http://127.0.0.1:30000"


def test_a_page_of_an_error_is_one_short_line() -> None:
    page = "<html>\n  <body>" + "no such path\n" * 1000
    error = RequestError("GET", "/server_info", 404, page)
    assert "\n" not in str(error) and len(str(error)) < 1100 and error.answer == page


def test_an_answer_in_another_encoding_is_text() -> None:
    with answering(200, b"caf\xe9") as url:
        assert Client.from_url(url).get("/") == "caf\ufffd"


@pytest.mark.parametrize(("url", "port"), [("http://h", 80), ("https://h/", 443), ("http://[::1]:65535", 65535)])
def test_address(url: str, port: int) -> None:
    assert Client.from_url(url).port == port
