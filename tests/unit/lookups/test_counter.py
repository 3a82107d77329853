"""The counter of lookups: it matches a replay of the same requests, stays within its bounds, and fails quietly."""

from __future__ import annotations

import threading
from array import array

import pytest

from sglang_adaptive.lookups import counter
from sglang_adaptive.lookups.counter import LookupCounter
from sglang_adaptive.lookups.lookup import Text
from sglang_adaptive.lookups.tally import MATCHES, ROWS, Tally, lookup_words, worth
from sglang_adaptive.policy.base import AdaptivePolicy
from sglang_adaptive.policy.throughput import ThroughputOptions, ThroughputPolicy
from tests.fakes import controller, with_lookups
from tests.unit.lookups.test_lookup import drawn, written_out

Request = tuple["array[int]", "array[int]"]


def requests(count: int) -> list[Request]:
    """Return SGLang-like requests with at least two output tokens."""
    texts = [drawn(seed) for seed in range(1000, 1000 + 3 * count)]
    cut = [(array("q", text[:prompt]), array("q", text[prompt:])) for text, prompt in texts]
    return [request for request in cut if len(request[1]) > 1][:count]


def replayed(prompt: array[int], output: array[int]) -> tuple[int, int, int]:
    """Return a request's rounds, tokens, and tokens in runs, by the definition of a lookup."""
    text, place, rounds, in_runs = [*prompt, *output], len(prompt), 0, 0
    while place < len(text) - 1:
        got = written_out(text, place).tokens
        place, rounds, in_runs = place + got, rounds + 1, in_runs + (got if got >= 9 else 0)
    return rounds, len(output) - 1, in_runs


def test_it_counts_what_a_replay_of_the_same_requests_gives() -> None:
    made, told = requests(40), list[Tally]()
    counting = LookupCounter(told.append)
    for request in made:
        counting.add(*request)
    counting.close()
    report = counting.report(None, [])
    expected = [replayed(*request) for request in made]
    assert [(sum(one.rounds), sum(one.tokens), one.run_tokens) for one in told] == expected
    rounds, tokens, in_runs = map(sum, zip(*expected, strict=True))
    assert (report["rounds"], report["tokens"], report["run_tokens"]) == (rounds, tokens, in_runs)
    assert report["tokens_per_round"] == tokens / rounds and report["run_share"] == in_runs / tokens
    assert (report["requests"], report["left_out"], report["error"]) == (len(made), 0, None)
    assert sum(row["rounds"] for row in report["by_match"]) == rounds
    assert report["seconds_per_token"] > 0.0 and report["worth"] is None


def test_a_request_without_a_decoded_token_is_no_request() -> None:
    counting = LookupCounter()
    counting.add(array("q", [1, 2, 3]), array("q", [1]))
    counting.close()
    report = counting.report(None, [])
    assert (report["requests"], report["tokens_per_round"], report["run_share"]) == (0, None, None)
    assert list(lookup_words(report)) == []


def test_of_a_long_prompt_the_last_tokens_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counter, "LONGEST_TEXT", 60)
    prompt, output = array("q", range(1000)), array("q", [*range(970, 990), *range(100, 110)])
    counting = LookupCounter()
    counting.add(prompt, output)
    counting.close()
    assert counting.tally == Tally.of(Text([*prompt[-30:], *output], 30).rounds())
    assert counting.tally.run_tokens and counting.tally != Tally.of(Text([*prompt, *output], 1000).rounds())


def test_requests_are_left_out_while_too_many_tokens_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counter, "MOST_WAITING", 100)
    go = threading.Event()
    counting = LookupCounter(lambda tally: [None, go.wait(60)][0])
    for _ in range(5):
        counting.add(array("q", range(50)), array("q", range(10)))
    assert counting.left_out == 3  # two hold 120 tokens
    assert counting.report(None, [])["tokens_waiting"] == 120
    go.set()
    counting.close()
    assert counting.tally.requests == 2 and counting.report(None, [])["tokens_waiting"] == 0


def test_an_error_ends_the_counting_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    counting = LookupCounter()
    counting.add(array("q", [1, 2]), ["no", "tokens"])  # type: ignore[arg-type]
    counting.close()
    counting.add(array("q", [1, 2]), array("q", [1, 2, 1, 2]))
    report = counting.report(None, [])
    assert report["error"].startswith(("ValueError", "UFuncTypeError", "TypeError")) and report["requests"] == 0
    (record,) = caplog.records
    assert record.getMessage().startswith("adaptive: disabled lookup-counter after an error") and record.exc_info


def test_the_worth_is_what_its_formula_says() -> None:
    # 100 tokens: 40 rounds of one without a lookup, 20 tokens in 10 rounds after a match of 2, 40 in 2 rounds after 16.
    tally = Tally(3, (40, 10, 0, 0, 2, 0, 0), (40, 20, 0, 0, 40, 0, 0), 40)
    found = worth(tally, {0: 5.0, 1: 6.0, 3: 8.0}, [1.0, 1.5, 1.8, 2.0], 7.0)
    # The best depth is 1 or 3, at 4 s per token; 3 steps with all drafts correct need 2 s. Only the 40 pay.
    assert found == {
        "least": 400 / (400 - (40 * 2.0 - 2 * 7.0)),
        "most": 400 / (400 - (40 * 4.0 - 2 * 7.0) - 0.0 - max(0.0, 20 * 4.0 - 10 * 7.0)),
        "steps": 1,
        "seconds": 6.0,
        "lookup_seconds": 7.0,
    }
    assert worth(Tally(), {0: 5.0}, [1.0], 7.0) is None
    assert worth(tally, {}, [1.0], 7.0) is None


def test_rows_of_a_tally_are_the_lengths_that_agree() -> None:
    tally = Tally.of([found for text, prompt in map(drawn, range(60)) for found in Text(text, prompt).rounds()])
    several = [Tally.of(Text(text, prompt).rounds()) for text, prompt in map(drawn, range(60))]
    assert sum(several[1:], several[0]) == Tally(60, tally.rounds, tally.tokens, tally.run_tokens)
    assert all(tally.rounds) and tally.rounds[0] == tally.tokens[0]
    assert [least for least, _, _ in tally.rows()] == list(MATCHES)


def test_a_policy_with_round_times_prices_them() -> None:
    policy = ThroughputPolicy(3, ThroughputOptions())
    counting = LookupCounter()
    text = list(range(400))
    counting.add(array("q", text), array("q", text[100:300]))
    counting.close()
    by_position = [{"position": at, "reached": 100, "accepted": 50} for at in range(1, 4)]
    found = counting.report(policy, by_position)["worth"]
    assert found["lookup_seconds"] == policy.prices(ROWS, 0).seconds[0] > policy.prices(1, 0).seconds[0]
    assert found["steps"] <= 3, "deeper steps never ran"
    assert 1.0 < found["least"] < found["most"]
    words = " ".join(lookup_words(counting.report(policy, by_position)))
    assert f"{found['least']:.2f} to {found['most']:.2f} times as fast as at {found['steps']} steps" in words
    without_zero = ThroughputPolicy(3, ThroughputOptions(candidate_steps=(1, 3)))
    assert counting.report(without_zero, by_position)["worth"] is None
    assert counting.report(AdaptivePolicy(), by_position)["worth"] is None


def test_a_policy_that_cannot_price_them_ends_the_report_alone(caplog: pytest.LogCaptureFixture) -> None:
    policy = ThroughputPolicy(3, ThroughputOptions())
    found = with_lookups(controller(policy))
    assert found.snapshot()["lookups"]["requests"] == 1
    policy.prices = lambda *asked: 1 / 0  # type: ignore[method-assign]
    assert found.snapshot()["lookups"] is None and found.read_meters().lookups is None
    (record,) = caplog.records
    assert record.getMessage().startswith("adaptive: lookups are no longer reported")
