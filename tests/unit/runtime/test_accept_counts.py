"""Tokens and acceptance by position, against what was put in."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sglang_adaptive.policy.observation import RoundObservation
from sglang_adaptive.runtime.counters import Counters

ROUNDS = st.lists(
    st.integers(0, 5).flatmap(lambda steps: st.tuples(st.just(steps), st.lists(st.integers(0, steps), max_size=4)))
)


@given(ROUNDS)
def test_counts_are_those_of_every_request_looked_at_alone(rounds: list[tuple[int, list[int]]]) -> None:
    counters = Counters()
    for steps, accepted in rounds:
        counters.add_round(RoundObservation(steps, accepted, len(accepted)))
    requests = [(steps, kept) for steps, accepted in rounds for kept in accepted]
    for steps, tokens in counters.tokens().items():
        assert tokens == sum(kept + 1 for drafted, kept in requests if drafted == steps)
    for entry in counters.by_position():
        position = entry["position"]
        assert entry["reached"] == sum(steps >= position and kept >= position - 1 for steps, kept in requests)
        assert entry["accepted"] == sum(steps >= position and kept >= position for steps, kept in requests)
    deepest = max((steps for steps, _ in rounds), default=0)
    assert [entry["position"] for entry in counters.by_position()] == list(range(1, deepest + 1))


def test_nothing_seen_is_nothing_told() -> None:
    assert (Counters().tokens(), Counters().by_position()) == ({}, [])
