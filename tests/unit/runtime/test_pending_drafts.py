"""Held rows come out once, in order, and for the request that they belong to."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sglang_adaptive.runtime.pending_drafts import PendingDrafts

ROUNDS = st.lists(st.lists(st.integers(0, 6), unique=True, min_size=1), min_size=1, max_size=8)
"""The requests of each round: any may join, leave or change places."""


def test_some_rows_are_caught_up_apart() -> None:
    pending = PendingDrafts()
    for keys in ("a", "a", "ab", "abc"):
        pending.hold(keys)
    plan = pending.catch_up("abc")
    assert plan is not None
    rest, apart = plan.split({1, 5})
    assert (rest.rows, rest.counts, rest.sources) == ((0, 2), (4, 1), ((0, 1, 2, 4), (6,)))
    assert (apart.rows, apart.counts, apart.sources) == ((1,), (2,), ((3, 5),))
    assert [*plan.split(set())] == [*plan.split({0, 1, 2})] == [plan]


@given(rounds=ROUNDS, batch=st.lists(st.integers(0, 9), unique=True))
def test_each_request_gets_its_own_tokens_oldest_first(rounds: list[list[int]], batch: list[int]) -> None:
    pending, tokens = PendingDrafts(), []
    for index, keys in enumerate(rounds):
        pending.hold(keys)
        tokens += [(key, index) for key in keys]
    wanted = {row: [t for t in tokens if t[0] == key] for row, key in enumerate(batch)}
    wanted = {row: own for row, own in wanted.items() if own}
    plan = pending.catch_up(batch)
    assert (plan is None) == (not wanted)
    if plan is not None:
        assert dict(zip(plan.rows, ([tokens[i] for i in own] for own in plan.sources), strict=True)) == wanted
        assert plan.counts == tuple(map(len, plan.sources))
    assert [pending.owed(key) for key in batch] == [len(wanted.get(row, ())) for row in range(len(batch))]


@given(rounds=ROUNDS, spare=st.integers(0, 3))
def test_padding_fills_up_with_the_last_token(rounds: list[list[int]], spare: int) -> None:
    pending = PendingDrafts()
    for keys in rounds:
        pending.hold(keys)
    plan = pending.catch_up(range(7))
    assert plan is not None
    width = max(plan.counts) + spare
    padded, last = plan.padded_sources(width), plan.last_places(width)
    for index, own in enumerate(plan.sources):
        row = padded[index * width : (index + 1) * width]
        assert tuple(row[: len(own)]) == own and set(row[len(own) :]) <= {own[-1]}
        assert padded[last[index]] == own[-1] and last[index] == index * width + plan.counts[index] - 1
    assert len(padded) == width * len(plan.rows)


@given(rounds=ROUNDS)
def test_in_order_is_what_needs_no_looking_up(rounds: list[list[int]]) -> None:
    pending = PendingDrafts()
    for keys in rounds:
        pending.hold(keys)
    plan = pending.catch_up(range(7))
    assert plan is not None
    starts = [sum(map(len, rounds[:number])) for number in range(len(rounds))]
    straight = [[start + row for start in starts] for row in range(len(plan.rows))]
    alike = {len(keys) for keys in rounds} == {len(plan.rows)}
    assert plan.is_one_of_each([len(keys) for keys in rounds]) == (alike and [*map(list, plan.sources)] == straight)


def test_who_is_left_out_of_the_last_round_is_told_what_it_owes_until_the_next_is_settled() -> None:
    pending = PendingDrafts()
    for _ in range(3):
        pending.hold(["stays", "leaves"])
    pending.hold(["stays"])
    pending.settle(["stays"])
    assert (pending.owed("stays"), pending.owed("leaves")) == (0, 3)
    assert pending.catch_up(["leaves"]) is None
    pending.hold(["stays"])
    assert pending.owed("leaves") == 3
    pending.settle(["stays"])
    assert pending.owed("leaves") == 0


@given(rounds=ROUNDS, later=ROUNDS)
def test_what_was_written_is_owed_no_more_but_the_latest_row(rounds: list[list[int]], later: list[list[int]]) -> None:
    """This holds for the latest round's requests; other requests get what they owe once."""
    pending, tokens = PendingDrafts(), []
    for keys in rounds:
        pending.hold(keys)
    latest, gone = rounds[-1], {key for keys in rounds for key in keys} - set(rounds[-1])
    owed = {key: pending.owed(key) for key in gone}
    assert pending.all_in_latest(latest) and not any(pending.all_in_latest([*latest, key]) for key in (*gone, "nobody"))
    pending.keep_latest(latest)
    assert pending.rounds == 1 and {key: pending.owed(key) for key in gone} == owed
    tokens += [(key, "latest") for key in latest]
    for index, keys in enumerate(later):
        pending.hold(keys)
        tokens += [(key, index) for key in keys]
    batch = sorted({key for key, _ in tokens})
    plan = pending.catch_up(batch)
    assert plan is not None and pending.rounds == 1 + len(later)
    for row, own in zip(plan.rows, plan.sources, strict=True):
        assert [tokens[place] for place in own] == [token for token in tokens if token[0] == batch[row]]
