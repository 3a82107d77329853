"""How ``sglang-adaptive watch`` displays states of real controllers."""

from __future__ import annotations

import io
import json
import math
from itertools import combinations, pairwise
from typing import Any

import pytest
from rich.console import Console

from sglang_adaptive.calibrate.explain import explain
from sglang_adaptive.client import Client
from sglang_adaptive.command_line import listed
from sglang_adaptive.policy.base import AdaptivePolicy
from sglang_adaptive.policy.config import check_config
from sglang_adaptive.policy.ema import AdaptiveSpeculativeParams
from sglang_adaptive.policy.throughput import ThroughputOptions, ThroughputPolicy
from sglang_adaptive.policy.throughput.lookups import DRAFTS
from sglang_adaptive.runtime.controller import AdaptiveController
from sglang_adaptive.runtime.history import SPANS, SPEEDUP_SECONDS
from sglang_adaptive.runtime.round_times import RoundClock
from sglang_adaptive.sglang_plugin.reporting.metric_series import series
from sglang_adaptive.watch.command import main
from sglang_adaptive.watch.lines import Lines
from sglang_adaptive.watch.screen import Marks, screen
from sglang_adaptive.watch.view import Reading, read, view, worth
from tests.answering import answering
from tests.live_controllers import controller, ema, serve
from tests.unit.runtime.test_controller import Ticks

URL = "http://127.0.0.1:30000"


def reading(at: float, adaptive: dict[str, Any] | None) -> Reading:
    return Reading(at, 1_700_000_000.0 + at, {} if adaptive is None else {"adaptive": adaptive})


def drawn(*views: dict[str, Any], width: int = 100, colour: bool = False, encoding: str = "utf-8") -> str:
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=colour, no_color=not colour, highlight=False)
    console.print(screen(views[-1], views, Marks.of(encoding, width)))
    return out.getvalue()


def test_rates_count_every_token_between_two_readings() -> None:
    found = ema(warmup_batches=1000)
    before = serve(found, 3, accepted=1.0, batch_size=3)
    found.force_steps(0)  # without drafts a round still yields a token a request
    serve(found, 4, accepted=0.0, batch_size=5)
    found.force_steps(7)
    after = serve(found, 10, accepted=3 / 7, batch_size=2)
    seen = view(URL, reading(1.0, before), reading(3.0, after))
    passed = seen["since_last"]
    tokens = 4 * 5 + 10 * 2 * (3 + 1)
    assert (seen["state"], passed["tokens"], passed["tokens_per_second"]) == ("serving", tokens, tokens / 2.0)
    assert passed["rounds_by_depth"] == {"0": 4, "7": 10}
    assert passed["accept_length"] == tokens / (4 * 5 + 10 * 2)
    assert passed["accepted_share"] == 3 / 7
    assert seen["words"] == "an operator holds the depth at 7"
    by_depth = {row["depth"]: row for row in seen["by_depth"]}
    assert by_depth[7]["live"] and by_depth[7]["share_of_rounds"] == 10 / 14 and by_depth[7]["accept_length"] == 4.0
    assert by_depth[1]["accept_length"] is None
    # Reached and accepted at every position before the fourth: 3 rounds of 3 at depth 3, and these 20.
    assert [entry["probability"] for entry in seen["acceptance"]][:4] == [1.0, 1.0, 1.0, 0.0]
    assert seen["recent_switches"][-1]["words"] == "an operator forced it"


def test_states() -> None:
    state = serve(ema(), 3, accepted=1.0)
    assert view(URL, None, reading(0, state))["since_last"] is None
    assert view(URL, reading(0, state), reading(1, state))["state"] == "idle"
    restarted = serve(ema(), 1, accepted=1.0)
    assert view(URL, reading(0, state), reading(1, restarted))["since_last"] is None
    not_asked = view(URL, None, reading(0, None))
    assert (not_asked["state"], not_asked["words"]) == ("not adaptive", "started without adaptive speculation")
    cannot = view(URL, None, reading(0, {"active": False, "reason": "topk is 4"}))
    assert (cannot["state"], cannot["words"]) == ("not adaptive", "asked to adapt, but it cannot: topk is 4")


def test_degraded_says_what_the_depth_stays_at(monkeypatch: pytest.MonkeyPatch) -> None:
    found = ema()

    def fail(batch_size: int) -> int:
        raise RuntimeError("broken")

    monkeypatch.setattr(found.params, "get_steps_for_batch", fail)
    seen = view(URL, None, reading(0, serve(found, 1, accepted=0.5)))
    assert seen["state"] == "degraded"
    assert seen["words"] == "the policy was set aside; the depth stays at 3: policy ema raised RuntimeError: broken"
    assert "degraded" in drawn(seen)


@pytest.fixture(params=[100, 60], ids=["wide", "narrow"])
def width(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def test_screen_of_the_throughput_policy(width: int) -> None:
    found = controller(ThroughputPolicy(3))
    states = [serve(found, rounds, accepted=1.0) for rounds in (30, 30, 30)]
    views = [view(URL, reading(at, states[at]), reading(at + 1, states[at + 1])) for at in (0, 1)]
    text = drawn(*views, width=width)
    assert "\x1b" not in text and max(map(len, text.splitlines())) <= width
    for part in ("serving", "policy throughput", "accept length", "tokens/s", "why: ", "Acceptance by position"):
        assert part in text
    live = next(row["depth"] for row in views[-1]["by_depth"] if row["live"])
    assert sum(line.lstrip().startswith(f"> {live} ") for line in text.splitlines()) == 1
    assert f"of {views[-1]['switches']} switches" in text
    plain = drawn(*views, width=width, encoding="ascii")
    assert plain.isascii() and "#" in plain


BUILT = (0, 1, 3, 7)
LADDERS = [ladder for count in range(1, 5) for ladder in combinations(BUILT, count) if ladder != (0,)]


def test_rounds_of_lookups_are_shown_beside_the_depths() -> None:
    policy = ThroughputPolicy(3, ThroughputOptions(candidate_steps=BUILT, lookup=True))
    found = controller(policy, RoundClock(Ticks()), looks_up=True)
    states = [serve(found, 5, accepted=1.0, batch_size=size) for size in (2, 2, 64)]
    few, many = (view(URL, reading(0, before), reading(1, state)) for before, state in pairwise(states))
    for seen, source in ((few, "looked up"), (many, "not used at this batch size")):
        rows = {row["depth"]: row for row in seen["by_depth"]}
        assert rows[31]["expected_tokens_per_second"] is None and rows[31]["allowed"] is (seen is few)
        assert drawn(seen, width=100).count(source) == len(DRAFTS)
    assert "verify 15 and 31 drafts looked up" in "\n".join(explain(states[-1]))
    assert "left out" not in "\n".join(explain(states[-1]))


@pytest.mark.parametrize(
    ("policy", "ladder"), [(name, ladder) for name in ("throughput", "ema") for ladder in LADDERS], ids=str
)
def test_every_reader_takes_built_depths_that_a_later_configuration_leaves_out(
    policy: str, ladder: tuple[int, ...]
) -> None:
    ticks = Ticks()
    found = controller(ThroughputPolicy(3, ThroughputOptions(candidate_steps=BUILT)), RoundClock(ticks))
    states = [serve(found, 5, accepted=1.0)]
    found.replace_policy(successor(found, policy, ladder), by="a test")
    states.append(found.snapshot())  # before the first round
    for steps in (*BUILT, None):
        found.force_steps(steps)
        ticks.now += 2.0
        states.append(serve(found, 3, accepted=0.7))
    assert states[-1]["tiers"] == list(BUILT) and found.candidate_steps == list(ladder)
    lines = Lines()
    for before, state in pairwise(states):
        seen = view(URL, reading(0, before), reading(1, state))
        assert [row["depth"] for row in seen["by_depth"] if row["allowed"]] == list(ladder)
        assert "By depth" in drawn(seen, width=60)
        left_out = len(BUILT) - len(ladder) if policy == "throughput" else 0
        assert drawn(seen, width=100).count("left out by the configuration") == left_out
        assert list(lines.of(seen))
        told = "\n".join(explain(state))
        assert f"configured depths: {listed(ladder)}." in told
        assert ("Built, but not used by the current configuration:" in told) is (len(ladder) < len(BUILT))
    names = {name for name, _, value in series(found.read_meters()) if math.isfinite(value)}
    assert names >= {"rounds_total", "position_reached_tokens_total"}
    assert all(found.history(span)["buckets"] for span in SPANS)


def successor(found: AdaptiveController, policy: str, ladder: tuple[int, ...]) -> AdaptivePolicy:
    """Return the policy that a server builds for a later configuration; see ``policies.build_successor``."""
    live = found.worker.speculative_num_steps
    if policy == "ema":
        return AdaptiveSpeculativeParams(live, config=check_config({"1": {"candidate_steps": list(ladder)}}, "test"))
    new = ThroughputPolicy(live, ThroughputOptions(candidate_steps=ladder))
    new.take_over(found.params, found.built)
    return new


def test_screen_of_the_ema_policy_and_its_colour() -> None:
    seen = view(URL, None, reading(0, serve(ema(), 12, accepted=0.34)))
    text = drawn(seen)
    assert "Slots of the EMA policy" in text and "1 up" in text and "It has not switched yet." in text
    assert "\x1b[" in drawn(seen, colour=True)


def test_lines_tell_each_switch_once() -> None:
    found, lines = ema(warmup_batches=0, update_interval=1), Lines()
    first = serve(found, 1, accepted=1.0)
    later = serve(found, 12, accepted=1.0)
    told = list(lines.of(view(URL, None, reading(0, first))))
    told += lines.of(view(URL, reading(0, first), reading(1, later)))
    told += lines.of(view(URL, reading(1, later), reading(2, later)))
    switches = [line for line in told if "switch 3 -> 7: recent acceptance favored it" in line]
    assert len(switches) == 1 == later["switches"] - first["switches"]
    assert "serving, depth 7, " in told[-2] and " tokens/s, accept length " in told[-2]
    assert told[-1].endswith("idle, depth 7")
    gone = view(URL, None, Reading(3, 3, problem="it does not answer"))
    (line,) = lines.of(gone)
    assert line.endswith("gone: it does not answer")


@pytest.mark.parametrize(
    ("status", "body", "told"),
    [
        (401, b'{"error": "Unauthorized"}', "it asks for a key: give the right one with --api-key"),
        (500, b"oops", "GET /server_info: 500 oops"),
        (200, b"<html>", "it answers, but not like an SGLang server"),
    ],
)
def test_servers_that_tell_nothing(status: int, body: bytes, told: str) -> None:
    with answering(status, body) as url:
        assert read(Client.from_url(url), 0).problem == told


@pytest.mark.parametrize(
    ("body", "words", "code", "told"),
    [
        (b'{"internal_states": [{}]}', [], 1, "not adaptive: started without adaptive speculation"),
        (b'{"internal_states": [{}]}', ["--replica", "1"], 2, "--replica: got 1; the server has 1, counted from 0"),
    ],
)
def test_once_and_its_exit_code(
    body: bytes, words: list[str], code: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with answering(200, body) as url:
        assert main(["--url", url, "--once", *words]) == code
    printed = capsys.readouterr()
    assert told in " ".join((printed.out + printed.err).split())


def test_once_as_json_where_nobody_answers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--host", "127.0.0.1", "--port", "9", "--once", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["state"], found["url"]) == ("gone", "http://127.0.0.1:9")


def test_worth_says_what_the_server_knows_and_how_sure_it_is() -> None:
    against = [{"steps": 0, "times": 1.9, "deviation": 0.05}, {"steps": 3, "times": 1.043, "deviation": 0.004}]
    state = {"launch_steps": 3, "speedup": {"seconds": 3600, "against": against}}
    told = worth(state)
    assert told is not None
    assert told["no_speculation"] == {"times": 1.9, "deviation": 0.05} and told["launch_depth"]["times"] == 1.043
    for part in ("1.9 (± 0.1)", "1.04 (± 0.01)", "hour", "3 steps"):
        assert part in told["words"]
    without_zero = worth({"launch_steps": 3, "speedup": {"seconds": 40, "against": against[1:]}})
    assert without_zero is not None and without_zero["no_speculation"] is None
    assert "speculation" not in without_zero["words"] and "40 seconds" in without_zero["words"]
    assert worth({"launch_steps": 3, "speedup": None}) is None


def test_worth_is_shown_and_written_once_a_minute() -> None:
    ticks = Ticks()
    found = controller(ThroughputPolicy(3), RoundClock(ticks))
    serve(found, 30, accepted=1.0)
    ticks.now += SPEEDUP_SECONDS
    state = found.snapshot()
    words = worth(state)["words"]  # type: ignore[index]
    lines = Lines()
    views = [view(URL, None, reading(at, state)) for at in (0, 1, 2, 70)]
    told = [line for seen in views for line in lines.of(seen)]
    assert sum(line.endswith(f"worth: {words}") for line in told) == 2
    assert words in " ".join(drawn(views[0], width=200).split())
