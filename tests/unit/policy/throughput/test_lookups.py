"""Lookups in the throughput policy: what it learns about them, and when it chooses them."""

from __future__ import annotations

import itertools
import random
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.traces.lookup import Text
from sglang_adaptive.policy.choice import Choice, Coming, Source, drafted
from sglang_adaptive.policy.observation import DRAFTS, LONGEST, SHORTEST, Lookup, RoundObservation
from sglang_adaptive.policy.throughput import lookups
from sglang_adaptive.policy.throughput.lookups import (
    KINDS,
    LOOK,
    LOOKING,
    MOST_REST,
    REMEMBERED,
    REST,
    TRACKING_SECONDS,
    Agreement,
    Drafted,
    Runs,
)
from sglang_adaptive.policy.throughput.policy import ThroughputOptions, ThroughputPolicy
from tests.unit.policy.throughput.test_cost import profile

WIDEST = max(KINDS)
REQUESTS = max(sizes[-1] for sizes in KINDS.values())
SECONDS = {0: 1.0, 1: 1.2, 3: 1.4, 7: 1.8}
"""Of a round at small batches, in units of a plain decode."""


def policy(behind: int = 0, slope: float = 0.002) -> ThroughputPolicy:
    """Return a policy of a server where one more token to verify costs *slope* of a plain decode."""
    cells = {
        (batch, steps): 0.005 * (seconds + slope * batch * (steps + 1))
        for batch in (1, 2, 4, 8, 16, 32, 64, 128)
        for steps, seconds in SECONDS.items()
    }
    options = ThroughputOptions(tuple(SECONDS), lookup=True, lookup_memory_mb=64, probe_budget=0.0)
    made = ThroughputPolicy(3, options, profile(cells))
    made.allow_lookups(True, behind)
    return made


def looking_up(drafts: int) -> Choice:
    return Choice(drafts, Source.LOOKUP, why="lookup")


def serve(made: ThroughputPolicy, found: list[Lookup], accepted: int = 1) -> int:
    """Run a round in which every request gets *accepted* drafts, or those of *found* in a lookup round."""
    choice = made.choose(Coming(len(found)))
    counts = [min(choice.steps, one.agreed if choice.source is Source.LOOKUP else accepted) for one in found]
    made.observe(RoundObservation(choice, counts, len(found), lookups=found))
    return choice.steps


def test_the_matches_of_the_policy_are_those_of_a_lookup() -> None:
    assert (lookups.LEVELS[0], lookups.LEVELS[-1]) == (SHORTEST, LONGEST)
    assert WIDEST < DRAFTS, "the device looks further than the policy ever verifies"


def test_what_is_expected_at_first_is_what_a_text_with_the_chances_of_the_formula_yields() -> None:
    agreement, draw = Agreement(), random.Random(1)
    for match in (2, 4, 16, 64):
        agreed = []
        for _ in range(20_000):
            run = 0
            while run < WIDEST and draw.random() < (match + run - 1) / (match + run):
                run += 1
            agreed.append(run)
        for expected, drafts in zip(agreement.tokens(match, tuple(KINDS)), KINDS, strict=True):
            assert expected == pytest.approx(1 + sum(min(run, drafts) for run in agreed) / len(agreed), rel=0.03)
        assert agreement.chance(match, 3) == pytest.approx(sum(run >= 3 for run in agreed) / len(agreed), abs=0.02)


def test_rounds_teach_how_far_texts_agree() -> None:
    agreement = Agreement()
    for _ in range(400):
        agreement.learn(4, 2)  # after six tokens it always ends
    assert agreement.chance(4, 2) > 0.97 and agreement.chance(4, 3) < 0.04
    assert agreement.tokens(4, tuple(KINDS))[-1] == pytest.approx(3.0, abs=0.3)
    assert agreement.chance(40, 1) == pytest.approx(31 / 32), "nothing was seen there"
    for _ in range(2000):
        agreement.learn(4, 9)
    assert agreement.chance(4, 9) > 0.9, "a text that has changed is believed"
    assert agreement.chance(1, 1) == 0.0


def rounds_of(*found: Lookup, accepted: int = 3, request: str = "a") -> list[RoundObservation]:
    """Return rounds of one request, with *accepted* drafts in each."""
    return [RoundObservation(drafted(3), [accepted], 1, lookups=[one], requests=[request]) for one in found]


def learnt(*rounds: RoundObservation) -> list[tuple[int, int]]:
    """Return what *rounds* teach: matches, and the tokens that agreed."""
    trials: list[tuple[int, int]] = []
    agreement: Any = SimpleNamespace(learn=lambda *trial: trials.append(trial))
    runs = Runs(agreement)
    for one in rounds:
        runs.learn(one)
    return trials


def test_a_copy_is_followed_until_it_breaks() -> None:
    """Three rounds of four tokens match, the fourth breaks after one: each start saw the rest of the copy."""
    whole = rounds_of(Lookup(8, 4, 12), Lookup(12, 4, 16), Lookup(16, 4, 20))
    assert not learnt(*whole), "nothing is known of a copy before it breaks"
    assert learnt(*whole, *rounds_of(Lookup(20, 1, 0))) == [(8, 13), (12, 9), (16, 5), (20, 1)]


def test_a_copy_that_nobody_saw_break_says_nothing() -> None:
    rounds = [*rounds_of(Lookup(8, 4, 12)), *rounds_of(Lookup(0, 0, 0), request="b"), *rounds_of(Lookup(12, 0, 0))]
    assert learnt(*rounds) == [(12, 0)]


def test_as_many_as_can_be_verified_are_enough() -> None:
    longest = RoundObservation(looking_up(WIDEST), [WIDEST], 1, lookups=[Lookup(9, WIDEST, 41)], requests=["a"])
    assert learnt(longest) == [(9, WIDEST)]


def test_lookups_that_lose_have_to_promise_more() -> None:
    made = policy(slope=0.02)
    found = Lookup(0, 0, 2)
    made.observe(RoundObservation(drafted(3), [1], 1, lookups=[found]))
    assert made.choose(Coming(1)).steps in KINDS
    for _ in range(20):
        made.observe(RoundObservation(looking_up(WIDEST), [0], 1, lookups=[found]))
    assert made.choose(Coming(1)).steps in SECONDS
    for _ in range(20):
        made.observe(RoundObservation(looking_up(WIDEST), [9], 1, lookups=[found]))
    assert made.choose(Coming(1)).steps in KINDS


def test_a_request_that_joins_has_no_match_yet() -> None:
    made = policy()
    seen = [Lookup(64, 32, 64), Lookup(0, 0, 0)]
    made.observe(RoundObservation(drafted(3), [3, 1], 2, lookups=seen, requests=["a", "b"]))
    for coming, expected in (("ab", True), ("bc", False), ("a", True), ("ac", True), ("c", False)):
        assert (made.choose(Coming(len(coming), list(coming))).steps in KINDS) is expected, coming


def test_copied_text_is_looked_up_and_other_text_is_not() -> None:
    made = policy()
    nothing, run = Lookup(0, 0, 0), Lookup(40, 32, 64)
    assert serve(made, [nothing]) in SECONDS
    assert made.choose(Coming(1)).steps in SECONDS
    serve(made, [Lookup(0, 0, 20)])
    assert serve(made, [run]) == WIDEST
    assert serve(made, [nothing]) == WIDEST, "the run has not been seen to end yet"
    assert serve(made, [nothing]) in SECONDS
    assert not made.choose(Coming(1)).probe
    assert made.snapshot()["why"]["code"] != "lookup"


def test_one_that_copies_has_to_pay_for_the_rows_of_all() -> None:
    dear = 0.02
    for size, expected in ((1, True), (4, False)):
        made = policy(slope=dear)
        found = [Lookup(0, 0, 12), *[Lookup(0, 0, 0)] * (size - 1)]
        for _ in range(3):
            made.observe(RoundObservation(drafted(3), [3] * size, size, lookups=found))
        assert (made.choose(Coming(size)).steps in KINDS) is expected


def test_larger_batches_and_unknown_ones_are_drafted() -> None:
    made = policy()
    for size, told in ((REQUESTS + 1, REQUESTS + 1), (2, 1), (1, 0)):
        made.observe(RoundObservation(drafted(3), [1] * told, told, lookups=[Lookup(64, 32, 64)] * told))
        assert made.choose(Coming(size)).steps in SECONDS
    made.observe(RoundObservation(drafted(3), [1] * 2, 2, lookups=[Lookup(64, 32, 64)] * 2))
    assert made.choose(Coming(2)).steps == WIDEST
    made.allow_lookups(False)
    assert made.choose(Coming(2)).steps in SECONDS
    assert made.candidate_steps == list(SECONDS) and not made.lookup_kinds


def test_a_profile_in_which_more_steps_take_less_time_is_served() -> None:
    """A host that was busy when it measured alone had left one on an H200, and the policy ended."""
    known = profile({(1, 1): 0.1, (1, 3): 0.01, (16, 1): 0.01, (16, 3): 0.02})
    made = ThroughputPolicy(3, ThroughputOptions((1, 3), lookup=True), known)
    made.allow_lookups(True)
    for _ in range(8):
        assert serve(made, [Lookup(64, 32, 64)], accepted=3)


def test_a_run_has_to_outlast_the_round_that_is_under_way() -> None:
    """With overlap the match is known one round late: a short one is likely over by then, a long one is not."""
    for match, late in ((2, False), (64, True)):
        for behind in (0, 1):
            made = policy(behind)
            for _ in range(3):
                made.observe(RoundObservation(drafted(7), [1], 1, lookups=[Lookup(0, 0, match)]))
            made.choose(Coming(1))
            made.observe(RoundObservation(drafted(7), [1], 1, lookups=[Lookup(0, 0, match)]))
            assert (made.choose(Coming(1)).steps in KINDS) is (late or not behind), (match, behind)


def followed(made: ThroughputPolicy, rounds: int, seconds: float | None = None, tracking: float = 0.0) -> list[int]:
    """Serve *rounds* without copies; return the lengths of pauses and of the tracked stretches after them.

    A round takes *seconds*, and *tracking* more if texts are tracked.
    """
    seen: list[bool] = []
    for _ in range(rounds):
        seen.append(made.tracks_texts)
        took = None if seconds is None else seconds + tracking * seen[-1]
        made.observe(RoundObservation(drafted(3), [1], 1, took, lookups=[Lookup(0, 0, 2)] if seen[-1] else []))
        if made.cost_sync_due:
            made.import_cost(made.export_cost())
    return [len(list(some)) for _, some in itertools.groupby(seen)]


def pauses(made: ThroughputPolicy, looks: int, **more: float) -> list[int]:
    """Return the pauses before the first *looks* looks."""
    found = followed(made, looks * 4 * MOST_REST, **more)
    assert all(length == LOOK for length in found[1 : 2 * looks : 2])
    return found[: 2 * looks : 2]


def test_texts_that_copy_nothing_are_followed_rarely_after_the_first_look() -> None:
    assert pauses(policy(), 9, seconds=0.01, tracking=TRACKING_SECONDS) == [LOOK, *[MOST_REST] * 8]


def test_by_default_texts_of_short_rounds_are_not_followed() -> None:
    for share, short in ((1.0, False), (0.3, True)):
        known = profile({cell.place: share * cell.seconds for cell in policy().profile.cells})
        auto = ThroughputPolicy(3, ThroughputOptions(candidate_steps=tuple(SECONDS)), known)
        auto.allow_lookups(True)
        auto.expect_copies()
        assert (followed(auto, 400) == [400]) is short
    assert not auto.tracks_texts


def test_a_prompt_that_was_seen_before_ends_a_rest() -> None:
    made = policy()
    followed(made, 200)
    assert not made.tracks_texts
    made.expect_copies()
    assert followed(made, LOOK + 5) == [LOOK, 5]


@pytest.mark.parametrize("tracking", [0.0, 0.0004, 0.002])
def test_the_time_of_tracking_is_learnt_where_it_starts_and_ends(tracking: float) -> None:
    made = policy()
    found = pauses(made, 40, seconds=0.01, tracking=tracking)
    learnt = made.snapshot()["lookup_rounds"]["tracking_seconds"]
    assert learnt == pytest.approx(max(tracking, lookups.LEAST_TRACKING), rel=0.1, abs=2e-5)
    looks = tracking * LOOK / (0.01 * (found[-1] + LOOK))
    assert found[-1] == MOST_REST if tracking < 0.001 else looks == pytest.approx(LOOKING, rel=0.15)


def test_a_depth_does_not_seem_slow_because_texts_were_tracked() -> None:
    made = policy()
    before = made._times.at(1).seconds
    tracking = 0.5 * before[3]
    followed(made, 200 * MOST_REST, seconds=before[3], tracking=tracking)
    for _ in range(2 * REST):
        made.observe(RoundObservation(drafted(7), [1], 1, before[7] + tracking, lookups=[Lookup(0, 0, 2)]))
    made.import_cost(made.export_cost())
    assert made._times.at(1).seconds == pytest.approx(before, rel=0.05)


def test_ranks_decide_by_the_clock_of_the_first() -> None:
    first, second = policy(), policy()
    for _ in range(100 * MOST_REST):
        tracked = first.tracks_texts
        assert second.tracks_texts is tracked
        for made, more in ((first, 0.002), (second, 0.0)):
            seconds = 0.01 + more * tracked
            made.observe(RoundObservation(drafted(3), [1], 1, seconds, lookups=[Lookup(0, 0, 2)] if tracked else []))
        if first.cost_sync_due:
            for made in (second, first):
                made.import_cost(first.export_cost())
    assert second.snapshot()["lookup_rounds"]["tracking_seconds"] == pytest.approx(0.002, rel=0.1)


def test_batches_that_are_never_followed_use_up_no_look() -> None:
    made = policy()
    for _ in range(2 * REST):
        made.observe(RoundObservation(drafted(3), [1] * (REQUESTS + 1), REQUESTS + 1))
    assert pauses(made, 1) == [LOOK]


def test_lookups_earn_the_rounds_in_which_texts_are_followed() -> None:
    made = policy()
    followed(made, 3 * REST, seconds=0.01, tracking=0.0001)

    def look_up(right: int) -> None:
        while not made.tracks_texts:
            made.observe(RoundObservation(drafted(3), [1], 1))
        while serve(made, [Lookup(LONGEST, right, LONGEST)]) != WIDEST:
            assert made.tracks_texts, "a look is over before anything was looked up"

    look_up(right=0)
    assert not made.tracks_texts, "a round that saved nothing ends the look"
    for _ in range(2):
        look_up(right=WIDEST)
    found = followed(made, REMEMBERED + 4 * MOST_REST)
    assert found[0] == REMEMBERED, "one that saved much is worth a long look"
    assert found[1:7:2] == [REST, 2 * REST, MOST_REST], "and soon another one"


def test_larger_batches_look_up_fewer_drafts() -> None:
    """As many as the kinds of their size, and only where a size has CUDA graphs."""
    for graphs, sizes in ((None, (1, 4, 5, 8, 9, 16, 17, 32)), ([1, 2, 4, 8, 12, 16], (1, 4, 5, 8, 9, 16))):
        made = policy()
        made.set_cuda_graph_bs(graphs)
        assert made.lookup_requests == sizes[-1]
        assert set(made.lookup_kinds) == {drafts for drafts, of in KINDS.items() if of[0] <= sizes[-1]}
        for size in (*sizes, sizes[-1] + 1):
            made.observe(RoundObservation(drafted(3), [1] * size, size, lookups=[Lookup(64, 32, 64)] * size))
            steps = made.choose(Coming(size)).steps
            assert steps in SECONDS if size > sizes[-1] else size in KINDS[steps], size


def test_a_depth_of_the_server_is_no_number_of_lookups() -> None:
    options = ThroughputOptions(candidate_steps=(0, 4, 15), lookup=True)
    made = ThroughputPolicy(4, options)
    made.allow_lookups(True)
    assert set(made.lookup_kinds) == set(KINDS) - {4, 15}


def test_what_a_draft_yields_is_learnt_by_match() -> None:
    pace = Drafted()
    for _ in range(100):
        pace.learn(0, 2, 3.0)
        pace.learn(64, 7, 3.0)
    assert pace.tokens(0, 7, 3.0) == pytest.approx(2.0, rel=0.1)
    assert pace.tokens(64, 7, 3.0) == pytest.approx(7.0, rel=0.1)
    assert pace.tokens(64, 3, 3.0) == 4.0, "no more than a round's drafts and one token"
    assert pace.tokens(8, 7, 3.0) == pytest.approx(pace.tokens(0, 7, 3.0), rel=0.1), "the level below says more"


def test_requests_that_do_not_copy_count_as_much_as_one_that_does() -> None:
    """A lookup round of 33 tokens delays three of four requests: their text has to be drafted afterwards."""
    made = policy(slope=0.012)
    for copies, expected in ((1, False), (3, True)):
        found = [Lookup(64, 8, 64)] * copies + [Lookup(0, 0, 0)] * (4 - copies)
        for _ in range(100):
            made.observe(RoundObservation(drafted(7), [7] * copies + [5] * (4 - copies), 4, lookups=found))
        assert (made.choose(Coming(4)).steps in KINDS) is expected, copies
        made._lookups._left = 2.0
        made.observe(RoundObservation(looking_up(WIDEST), [one.agreed * 4 for one in found], 4, lookups=found))
        assert made.tracks_texts is expected, "it earned something"


def test_a_draft_model_that_copies_as_well_is_kept() -> None:
    made = policy(slope=0.2)
    copied = Lookup(10, 7, 10)  # always ends there
    for _ in range(200):
        made.observe(RoundObservation(drafted(7), [7], 1, lookups=[copied]))
    assert made.choose(Coming(1)).steps == 7


def test_lookups_say_nothing_of_the_draft() -> None:
    made = policy()
    before = made.acceptance_by_position()
    for _ in range(50):
        made.observe(RoundObservation(looking_up(WIDEST), [WIDEST], 1, lookups=[Lookup(64, 32, 64)]))
    assert made.acceptance_by_position() == before


def measured(made: ThroughputPolicy, rounds: int = 9) -> None:
    """Time *rounds* of three steps, without tracking, that take as long as in the profile."""
    for _ in range(rounds):
        made.observe(RoundObservation(drafted(3), [1], 1, seconds=0.005 * (SECONDS[3] + 0.002 * 4)))


def test_their_times_are_learnt_and_shared() -> None:
    made = policy()
    measured(made)
    for _ in range(8):
        made.observe(RoundObservation(looking_up(WIDEST), [9], 1, seconds=0.09, lookups=[Lookup(9, 9, 20)]))
    assert made.choose(Coming(1)).steps == WIDEST, "no table was handed over yet"
    made.import_cost(made.export_cost())
    made.observe(RoundObservation(drafted(3), [1], 1, lookups=[Lookup(9, 9, 20)]))
    assert made.choose(Coming(1)).steps != WIDEST
    assert made.snapshot()["lookup_rounds"]["seconds"][str(WIDEST)] == pytest.approx(0.09, rel=0.1)
    assert all(cell["steps"] in SECONDS for cell in made.snapshot()["cost_cells"])


def test_one_slow_round_does_not_end_lookups() -> None:
    """Nothing would ever time another one."""
    for slow, expected in ((1, True), (3, False)):
        made = policy()
        measured(made)
        for _ in range(slow):
            made.observe(RoundObservation(looking_up(WIDEST), [31], 1, seconds=9.0, lookups=[Lookup(64, 31, 64)]))
        measured(made)
        made.observe(RoundObservation(drafted(3), [1], 1, lookups=[Lookup(64, 31, 64)]))
        made.import_cost(made.export_cost())
        assert (made.choose(Coming(1)).steps == WIDEST) is expected


@pytest.mark.parametrize("behind", [0, 1])
def test_the_last_round_of_a_look_earns_as_much_as_the_others(behind: int) -> None:
    made = policy(behind)
    while not made.tracks_texts:
        made.observe(RoundObservation(drafted(3), [1], 1))
    copied = [Lookup(64, WIDEST, 64)]
    for _ in range(LOOK - 1):
        made.observe(RoundObservation(drafted(3), [1], 1, lookups=copied))
    assert made.tracks_texts
    made.observe(RoundObservation(looking_up(WIDEST), [WIDEST], 1, lookups=copied))
    assert made.tracks_texts


def test_the_curve_foretells_an_edited_file() -> None:
    """A file, then the same with a few words changed: the prediction matches what lookups yield."""
    words = re.findall(r"\w+|\s+|[^\w\s]", Path(lookups.__file__).read_text())
    number = {word: at for at, word in enumerate(dict.fromkeys(words))}
    before, draw = [number[word] for word in words], random.Random(5)
    after = [len(number) + at if draw.random() < 0.02 else token for at, token in enumerate(before)]
    agreement, rounds = Agreement(), list(Text(before + after, len(before)).rounds())
    half = len(rounds) // 2
    for found in rounds[:half]:
        if found.match:
            agreement.learn(found.match, min(found.tokens - 1, WIDEST))
    later = [found for found in rounds[half:] if found.match]
    expected = sum(agreement.tokens(found.match, (WIDEST,))[0] for found in later)
    assert expected == pytest.approx(sum(min(found.tokens, WIDEST + 1) for found in later), rel=0.2)


def test_what_other_texts_yield_is_learned_apart() -> None:
    made = policy()
    for _ in range(200):
        made.observe(RoundObservation(drafted(3), [3], 1, lookups=[Lookup(12, 0, 12, 1, 1)]))
    assert made.choose(Coming(1)).source is Source.DRAFT, "matches of other texts promise nothing"
    made.observe(RoundObservation(drafted(3), [1], 1, lookups=[Lookup(0, 0, 12)]))
    assert made.choose(Coming(1)).source is Source.LOOKUP, "of the own text nothing was seen yet"


def test_other_texts_that_bring_nothing_are_left_out_and_looked_at_again() -> None:
    made, searched = policy(), []
    for number in range(lookups.MEMORY_LOOK * 2 + lookups.MEMORY_REST):
        brings = number > lookups.MEMORY_LOOK
        found = Lookup(40, WIDEST if brings else 0, 40, 1, 1)
        choice = looking_up(WIDEST) if brings and made.searches_memory else drafted(3)
        searched.append(made.searches_memory)
        made.observe(RoundObservation(choice, [choice.steps], 1, lookups=[found]))
    assert searched.index(False) == lookups.MEMORY_LOOK
    assert searched.count(False) == lookups.MEMORY_REST
    assert made.searches_memory, "it has brought something since"
    learnt = made.snapshot()["lookup_rounds"]
    assert learnt["memory"]["tokens"] == WIDEST * learnt["memory"]["rounds"] > 0
    assert learnt["own_text"]["rounds"] == learnt["own_text"]["tokens"] == 0
    without = ThroughputPolicy(3, ThroughputOptions(lookup=True))
    without.allow_lookups(True)
    assert without.snapshot()["lookup_rounds"]["memory"] is None
