"""Alarms, and the watch over acceptance: what raises it, what ends it, and that recorded text does not raise it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from itertools import permutations
from pathlib import Path

import pytest

from benchmarks.traces.files import requests
from sglang_adaptive.lab.traces import Trace, read
from sglang_adaptive.policy.base import AdaptivePolicy
from sglang_adaptive.policy.choice import Choice, Source, drafted
from sglang_adaptive.policy.observation import RoundNote, RoundObservation
from sglang_adaptive.policy.throughput import ThroughputPolicy
from sglang_adaptive.runtime.alarms import BACK, CAUSES, FALLEN, WINDOW_DRAFTS, WINDOW_SECONDS, AcceptanceWatch
from sglang_adaptive.runtime.controller import AdaptiveController
from sglang_adaptive.runtime.round_times import RoundClock
from tests import fakes
from tests.fakes import Ticks

FOLDER = Path(__file__).parents[3] / "benchmarks" / "traces"
BATCH = 20
"""Requests of a round: a window's drafts are a multiple of it."""
ROUND_SECONDS = 1.001 * WINDOW_SECONDS / (WINDOW_DRAFTS / BATCH - 1)
"""At this pace a window has as few drafts as it may have."""


class Rounds:
    def __init__(self) -> None:
        self.watch, self.now = AcceptanceWatch(), 0.0

    def add(self, choice: Choice, counts: list[int]) -> bool:
        """Add a round; *counts* are shadow accepts at zero steps. Return whether acceptance has collapsed."""
        self.now += ROUND_SECONDS
        note = RoundObservation(choice, counts if choice.steps else [0] * BATCH, BATCH)
        note.shadow_accepts = () if choice.steps else counts
        self.watch.add(self.now, note)
        return self.watch.alarm is not None

    def serve(self, share: float, windows: float = 1.0, steps: int = 3) -> bool:
        """Add rounds in which this share of the requests accepts the first draft, and no other."""
        right = round(share * BATCH)
        for _ in range(round(windows * WINDOW_DRAFTS / BATCH)):
            self.add(drafted(steps), [1] * right + [0] * (BATCH - right))
        return self.watch.alarm is not None


@pytest.mark.parametrize("steps", [0, 1, 7], ids=["shadow drafts", "1 step", "7 steps"])
def test_a_draft_that_never_fits_is_found_after_one_window(steps: int) -> None:
    rounds = Rounds()
    assert not rounds.serve(0.0, 0.99, steps)
    assert rounds.serve(0.0, 0.01, steps) and rounds.watch.alarm is not None
    words = "almost no draft has been accepted since the start: 0 of the latest 2000 at position 1"
    assert rounds.watch.alarm["words"] == words + CAUSES
    assert rounds.watch.alarm["details"] == {"accepted": 0, "drafts": 2000, "share": 0.0, "usual_share": None}


def test_a_window_needs_time_and_drafts() -> None:
    fast, slow = AcceptanceWatch(), AcceptanceWatch()
    nothing = RoundObservation(drafted(1), [0] * BATCH, BATCH)
    for index in range(10 * WINDOW_DRAFTS // BATCH):
        fast.add(index * 1e-3, nothing)
    for index in range(WINDOW_DRAFTS // BATCH - 1):
        slow.add(100.0 * index, nothing)
    assert fast.alarm is None and slow.alarm is None
    fast.add(WINDOW_SECONDS, nothing)
    slow.add(20_000.0, nothing)
    assert fast.alarm is not None and slow.alarm is not None


def test_rounds_without_drafts_are_no_evidence() -> None:
    rounds = Rounds()
    for _ in range(WINDOW_DRAFTS):
        assert not rounds.add(drafted(0), [])
        assert not rounds.add(Choice(31, Source.LOOKUP), [0] * BATCH)
    assert not rounds.serve(0.0, 0.99)
    assert rounds.serve(0.0, 0.01)


def test_a_fall_is_found_and_its_end() -> None:
    rounds = Rounds()
    assert not rounds.serve(0.8, 5)
    assert not rounds.serve(0.2), "a quarter of the usual share may be other text"
    usual = (5 * 0.8 + 0.2) / 6
    assert rounds.serve(0.1) and rounds.watch.alarm is not None
    words = "far fewer drafts are accepted than before: 10.0% of the latest 2000 at position 1 instead of 70%"
    assert rounds.watch.alarm["words"] == words + CAUSES
    assert rounds.watch.alarm["details"]["usual_share"] == pytest.approx(usual)
    assert BACK * FALLEN * usual > 0.2 and rounds.serve(0.2), "not back yet"
    assert rounds.serve(0.0, 100), "a day of it is not usual"
    assert not rounds.serve(0.6)
    assert rounds.serve(0.0)


def test_a_draft_that_fits_at_last_ends_the_alarm() -> None:
    rounds = Rounds()
    assert rounds.serve(0.0, 20)
    assert not rounds.serve(0.6)
    assert rounds.serve(0.05), "from now on it is compared with what it was"


def test_a_slow_decay_is_found() -> None:
    rounds = Rounds()
    raised = [rounds.serve(0.8 * (1.0 - hour / 24.0)) for hour in range(25)]
    assert 18 <= raised.index(True) <= 23 and all(raised[raised.index(True) :])


# -- recorded text --


def firsts(trace: Trace, steps: int, category: str | None = None) -> list[int]:
    """Return the accepted drafts of each request of each round at *steps*; at 0, whether the first draft is right."""
    found = []
    for name, accepted, _ in requests(trace):
        at, drafts = 0, accepted.tolist()
        while at < len(drafts) and category in (None, name):
            count = min(drafts[at], steps or 1)
            found.append(count)
            at += 1 + (count if steps else 0)
    return found


def raises(parts: Iterable[list[int]], steps: int) -> bool:
    """Whether an alarm is raised at any time; each part is served for at least two windows."""
    rounds = Rounds()
    for part in parts:
        counts = part * (1 + 2 * WINDOW_DRAFTS // len(part))
        for at in range(0, len(counts) - BATCH + 1, BATCH):
            if rounds.add(drafted(steps), counts[at : at + BATCH]):
                return True
    return False


def sequences(steps: int) -> Iterator[list[list[int]]]:
    """Yield the recordings of each pair of models in every order; then each two kinds of text of a recording."""
    tiny, blocks, *real = (
        read(FOLDER / name)
        for name in (
            *("tiny.npz", "tiny-blocks.npz"),
            *("smollm2-greedy.npz", "smollm2-sampled.npz", "edits_set/smollm2-edits.npz"),
        )
    )
    for pair in ([tiny], [blocks], real):
        for order in permutations([firsts(trace, steps) for trace in pair]):
            yield list(order)
    for trace in (tiny, blocks, *real):
        kinds = [firsts(trace, steps, kind) for kind in dict.fromkeys(trace.category)]
        yield from map(list, permutations(kinds, 2))


@pytest.mark.parametrize("steps", [0, 1, 3, 7])
def test_recorded_text_raises_nothing_whatever_it_follows(steps: int) -> None:
    served = 0
    for parts in sequences(steps):
        assert not raises(parts, steps)
        served += 1
    assert served > 40


@pytest.mark.parametrize("steps", [0, 3])
def test_a_draft_that_breaks_amid_recorded_text_is_found(steps: int) -> None:
    for name in ("tiny.npz", "smollm2-greedy.npz", "smollm2-sampled.npz"):
        sound = firsts(read(FOLDER / name), steps)
        broken = [count if index % 40 == 0 else 0 for index, count in enumerate(sound)]
        assert raises([sound, broken], steps) and raises([broken], steps)


# -- the controller --


def controller(policy: AdaptivePolicy) -> tuple[AdaptiveController, Ticks]:
    ticks = Ticks()
    return fakes.controller(policy, RoundClock(ticks), wall_time=ticks), ticks


def decode(found: AdaptiveController, ticks: Ticks, accepted: Callable[[int], int], seconds: float) -> None:
    """Serve four requests; *accepted* is called with the steps of a round, or 1 for a shadow draft every 16 rounds."""
    end, rounds = ticks.now + seconds, 0
    while ticks.now < end:
        found.choose(4)
        steps, rounds = found.states.live.steps, rounds + 1
        ticks.now += 0.05 + 0.01 * steps
        note = RoundNote(drafted(steps), requests=list("abcd"))
        if not steps and rounds % 16 == 0:
            note.shadow_accepts = [accepted(1)] * 4
        found.verified([accepted(steps)] * 4 if steps else [0] * 4, 4, note)


def test_a_new_configuration_ends_alarms_and_starts_the_comparison_anew() -> None:
    found, ticks = controller(ThroughputPolicy(3))
    decode(found, ticks, lambda steps: steps, 2 * WINDOW_SECONDS)
    found.force_steps(1)
    decode(found, ticks, lambda steps: 0, 2 * WINDOW_SECONDS)
    assert "far fewer drafts are accepted" in found.snapshot()["alarms"][0]["words"]
    found.replace_policy(ThroughputPolicy(3), by="a test")
    assert found.snapshot()["alarms"] == []
    decode(found, ticks, lambda steps: 0, 2 * WINDOW_SECONDS)
    assert "almost no draft has been accepted since the start" in found.snapshot()["alarms"][0]["words"]


def test_the_warm_up_and_audited_rounds_do_not_count() -> None:
    found, ticks = controller(ThroughputPolicy(3))
    found.warm_up.begin()
    decode(found, ticks, lambda steps: 0, 2 * WINDOW_SECONDS)
    found.end_warm_up()
    for _ in range(WINDOW_DRAFTS):
        ticks.now += 1.0
        found.verified([0] * 4, 4, RoundNote(drafted(3), audit=True))
    decode(found, ticks, lambda steps: steps, 2 * WINDOW_SECONDS)
    assert found.snapshot()["alarms"] == []


def test_a_rank_that_does_not_watch_raises_nothing() -> None:
    found, ticks = controller(ThroughputPolicy(3))
    found.acceptance_watch = None
    decode(found, ticks, lambda steps: 0, 4 * WINDOW_SECONDS)
    found.replace_policy(ThroughputPolicy(3), by="a test")
    assert found.snapshot()["alarms"] == [] and found.acceptance_watch is None


def test_alarms_keep_their_time_and_the_latest_words(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    ticks = Ticks()
    watch = AcceptanceWatch(ticks)
    watch.end()
    watch.raise_alarm("one", {"n": 1})
    ticks.now += 5.0
    watch.raise_alarm("three", {"n": 3})
    assert watch.alarm == {"name": "acceptance", "since": 100.0, "words": f"three{CAUSES}", "details": {"n": 3}}
    watch.end()
    assert watch.alarm is None
    assert caplog.messages == [f"adaptive: alarm, acceptance: one{CAUSES}", "adaptive: alarm over, acceptance"]
