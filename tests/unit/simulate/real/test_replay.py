"""Recorded text is replayed exactly, at any steps and in any company."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
import pytest

from sglang_adaptive.lab.simulate.contenders import StaticPolicy
from sglang_adaptive.lab.simulate.cost import load_cost
from sglang_adaptive.lab.simulate.real.scenes import Live, Work, arrivals, scenes
from sglang_adaptive.lab.simulate.real.serve import Served, serve
from sglang_adaptive.lab.simulate.real.suite import round_times
from sglang_adaptive.lab.simulate.real.texts import Texts
from sglang_adaptive.policy.choice import Choice, Coming, Source, drafted
from tests.drawn_texts import copying_trace, drawn_trace
from tests.fakes import InTurn

TRACE = drawn_trace({"easy": (0.98, 0.8), "hard": (0.5, 0.1)}, requests=12, tokens=60)
TEXTS = Texts.of(TRACE)
COST = load_cost(None)[1]
TABLE = COST.table(64)
STILL = np.ones(1)


def at_random(batch: int, texts: Texts = TEXTS) -> Work:
    return next(work for work in scenes(texts, batch, 60, seed=1) if work.name == "at random")


def played(policy: object, work: Work) -> Served:
    return serve(policy, Live(work), COST.steps, TABLE, STILL)  # type: ignore[arg-type]


def one_by_one(request: int, steps: int) -> int:
    at, rounds = int(TEXTS.begin[request]), 0
    while at < TEXTS.end[request]:
        at, rounds = at + min(int(TRACE.accepted[at]), steps) + 1, rounds + 1
    return rounds


@pytest.mark.parametrize("steps", [0, 1, 3, 7])
def test_all_requests_walk_as_each_does_alone(steps: int) -> None:
    rounds = TEXTS.walk(TEXTS.begin, TEXTS.end, steps)
    assert rounds.tolist() == [one_by_one(request, steps) for request in range(len(TEXTS.begin))]
    assert np.array_equal(TEXTS.rounds_to_go(steps)[TEXTS.begin], rounds)


def test_a_round_is_worth_the_rounds_that_it_saves() -> None:
    progress = TEXTS.progress((0, 1, 3, 7), 3)
    assert np.all(progress[:, 2] == 1.0)  # a round of the depth that is counted in
    assert np.all(np.diff(progress, axis=1) >= -1.0) and progress.min() >= 0.0
    last = TEXTS.end - 1
    assert np.all(progress[last] == 1.0)  # any round ends the text


def test_a_result_arrives_one_round_late_and_names_its_requests() -> None:
    work, recorder = at_random(4), InTurn(COST.steps)
    served = played(recorder, work)
    told = [seen for _, seen in recorder.told]
    assert [asked for asked, _ in recorder.told] == list(range(2, len(served.steps) + 1))
    at = dict(enumerate(work.begin.tolist()))
    for index, seen in enumerate(told):
        assert seen.steps == served.steps[index]
        for request, count in zip(seen.requests, seen.num_correct_drafts_per_req, strict=True):
            assert count == min(int(TRACE.accepted[at[request]]), seen.steps)
            at[request] += count + 1
        assert len(seen.requests) == seen.batch_size == 4
        if seen.seconds is not None:  # no prefill shares the round
            assert set(seen.requests) == set(told[index - 1].requests)
            assert seen.seconds == pytest.approx(TABLE[4, seen.steps])
    assert any(seen.seconds is not None for seen in told)


class LooksUpAtTimes(InTurn):
    """Looks up 15 or 31 drafts in three rounds of five, and drafts 3 in the others."""

    lookup_kinds, lookup_requests, tracks_texts = dict.fromkeys((15, 31), range(1, 3)), 2, True

    def __init__(self) -> None:
        super().__init__((3, 31, 15, 3, 31))
        self.expected: list[list[Hashable]] = []

    def allow_lookups(self, allowed: bool, behind: int = 0) -> None:
        assert allowed and behind == 1

    def choose(self, coming: Coming) -> Choice:
        assert len(coming.requests) == coming.batch_size
        self.expected.append([*coming.requests])
        self.chosen.append(self.depths[len(self.chosen) % 5])
        steps = self.chosen[-1]
        return drafted(steps) if steps == 3 else Choice(steps, Source.LOOKUP)


@pytest.mark.parametrize("batch", [1, 2])
def test_what_was_looked_up_is_replayed_and_told(batch: int) -> None:
    trace = copying_trace()
    assert trace.match is not None and trace.looked_up is not None
    recorder, work = LooksUpAtTimes(), at_random(batch, Texts.of(trace))
    served = serve(recorder, Live(work), COST.steps, round_times(COST, 4), STILL)
    at, ends, long = dict(enumerate(work.begin.tolist())), dict(enumerate(work.end.tolist())), 0
    for index, (_, seen) in enumerate(recorder.told):
        assert seen.looked_up == (seen.steps > 3) and (seen.looked_up or seen.steps == 3)
        rows = zip(seen.requests, seen.num_correct_drafts_per_req, seen.lookups, strict=True)
        for request, count, found in rows:
            here, drafts = at[request], trace.looked_up if seen.looked_up else trace.accepted
            assert count == min(int(drafts[here]), seen.steps)
            assert (found.match, found.agreed) == (trace.match[here], min(int(trace.looked_up[here]), count + 1))
            at[request] = then = here + count + 1
            assert found.now == (trace.match[then] if then < ends[request] else 0)
            long += count > 7
        assert seen.steps == served.steps[index]
    assert long > 5
    assert recorder.expected[: len(recorder.told)] == [list(seen.requests) for _, seen in recorder.told]


def test_larger_batches_are_not_followed() -> None:
    recorder = LooksUpAtTimes()
    recorder.lookup_requests = 1
    serve(recorder, Live(at_random(2, Texts.of(copying_trace()))), COST.steps, round_times(COST, 4), STILL)
    assert recorder.told and all(len(seen.lookups) == 0 for _, seen in recorder.told if seen.batch_size == 2)


def test_arrivals_wait_for_room_and_for_their_time() -> None:
    work = arrivals(TEXTS, rate=200.0, rounds=200, most=4, seed=3)
    served = played(StaticPolicy(3), work)
    assert work.arrivals is not None
    assert np.all(served.joined_at >= work.arrivals)
    assert np.all(served.finished_at > served.joined_at)
    assert served.tokens == work.lengths.sum()
    starts = [(second, 1) for second in served.joined_at] + [(second, -1) for second in served.finished_at]
    busy = np.cumsum([change for _, change in sorted(starts)])
    assert busy.max() == 4


def test_an_idle_server_waits_without_rounds() -> None:
    work = arrivals(TEXTS, rate=0.01, rounds=200, most=4, seed=3)
    served = played(StaticPolicy(3), work)
    rounds = TEXTS.walk(work.begin, work.end, 3)
    assert len(served.steps) == rounds.sum()  # always alone
    assert np.allclose(served.joined_at, work.arrivals)


def test_scenes_are_the_same_for_every_contender_and_differ_by_seed() -> None:
    first, again = list(scenes(TEXTS, 4, 100, seed=1)), list(scenes(TEXTS, 4, 100, seed=1))
    other = list(scenes(TEXTS, 4, 100, seed=2))
    assert [work.name for work in first] == ["easy", "hard", "at random", "phases", "drift", "near-copies"]
    assert all(np.array_equal(one.begin, two.begin) for one, two in zip(first, again, strict=True))
    assert not any(np.array_equal(one.begin, two.begin) for one, two in zip(first, other, strict=True))


def test_scenes_are_what_they_are_called() -> None:
    named = {work.name: work for work in scenes(TEXTS, 16, 400, seed=1)}
    easy, hard = (TEXTS.kinds.index(name) for name in ("easy", "hard"))
    assert set(named["easy"].kind) == {easy} and set(named["hard"].kind) == {hard}
    assert np.count_nonzero(np.diff(named["phases"].kind)) <= 3
    thirds = np.array_split(named["drift"].kind, 3)
    assert abs(thirds[0].mean() - thirds[2].mean()) > 0.4
    copies = named["near-copies"]
    values, counts = np.unique(copies.end, return_counts=True)
    burst = copies.end == values[counts.argmax()]
    assert burst.mean() > 0.25 and len(set(copies.begin[burst])) > 5
