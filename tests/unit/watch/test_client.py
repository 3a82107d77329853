"""What the client makes of a server's answers."""

from __future__ import annotations

from typing import Any

import pytest

from sglang_adaptive.client import Client


class Told(Client):
    """A client whose server answers *answer* to everything."""

    def __init__(self, answer: Any) -> None:
        super().__init__("127.0.0.1", 9)
        self.answer = answer

    def get(self, path: str) -> Any:
        return self.answer


def test_replicas_keep_their_place_in_whatever_order_they_answer() -> None:
    states = [{"adaptive": {"dp_rank": rank, "current_steps": steps}} for rank, steps in ((2, 7), (0, 1), (1, 3))]
    found = Told({"internal_states": states}).server_info()["internal_states"]
    assert [state["adaptive"]["current_steps"] for state in found] == [1, 3, 7]


@pytest.mark.parametrize("answer", [{"internal_states": [{}, {}]}, {"internal_states": ["?"]}, {}, "hello", [1]])
def test_answers_of_other_servers_are_handed_on(answer: Any) -> None:
    assert Told(answer).server_info() == answer
