"""How ``sglang-adaptive watch`` displays states of real controllers."""

from __future__ import annotations

import io
import json
import math
from itertools import combinations, pairwise
from typing import Any

import pytest
from rich.console import Console

from sglang_adaptive.client import Client
from sglang_adaptive.command_line import listed
from sglang_adaptive.explain import explain
from sglang_adaptive.policy.base import AdaptivePolicy
from sglang_adaptive.policy.config import check_config
from sglang_adaptive.policy.throughput import ThroughputOptions, ThroughputPolicy
from sglang_adaptive.policy.throughput.lookups import KINDS
from sglang_adaptive.runtime.controller import AdaptiveController
from sglang_adaptive.runtime.history import SPANS, SPEEDUP_SECONDS
from sglang_adaptive.runtime.round_times import RoundClock
from sglang_adaptive.sglang_plugin.stages.reporting import series
from sglang_adaptive.watch import compared, line, main, read, screen
from tests.answering import Told, answering
from tests.fakes import Ticks, controller, ema, serve, with_alarm
from tests.refusals import refused


def seen(state: dict[str, Any] | None, before: dict[str, Any] | None = None, seconds: float = 1.0) -> dict[str, Any]:
    """Return the view of *state*, read *seconds* after *before*."""
    internal = ({} if one is None else {"adaptive": one} for one in (before or state, state))
    views = [read(Told({"internal_states": [one]}))[0] for one in internal]
    views[0]["time"] = views[1]["time"] - (seconds if before else 0.0)
    return compared(*views)


def drawn(view: dict[str, Any], width: int = 100, terminal: bool = False) -> str:
    out = io.StringIO()
    Console(file=out, width=width, force_terminal=terminal, color_system="auto", highlight=False).print(screen(view))
    return out.getvalue()


def row(text: str, steps: int) -> list[str]:
    (found,) = [line for line in text.splitlines() if line.replace(">", " ").split()[:1] == [str(steps)]]
    return found.replace(">", " ").split()


def test_rates_count_every_token_between_two_readings() -> None:
    found = ema(warmup_batches=1000)
    before = serve(found, 3, accepted=1.0, batch_size=3)
    found.force_steps(0)  # without drafts a round still yields a token a request
    serve(found, 4, accepted=0.0, batch_size=5)
    found.force_steps(7)
    after = serve(found, 10, accepted=3 / 7, batch_size=2)
    view = seen(after, before, seconds=2.0)
    passed = view["since_last"]
    tokens = 4 * 5 + 10 * 2 * (3 + 1)
    assert (view["state"], passed["tokens"]) == ("serving", tokens)
    assert passed["tokens_per_second"] == pytest.approx(tokens / 2.0)
    assert passed["rounds_by_tier"] == {"0": 4, "7": 10}
    assert passed["accept_length"] == tokens / (4 * 5 + 10 * 2)
    assert view["words"] == "an operator holds the steps at 7"
    text = drawn(view)
    assert row(text, 7) == ["7", "71%", "4.00"] and row(text, 1) == ["1", "0%", "-"]
    # Reached and accepted at every position before the fourth: 3 rounds of 3 at depth 3, and these 20.
    assert "acceptance by position  100%  100%  100%  0%" in text
    assert "0 -> 7: an operator forced it" in text


def test_states() -> None:
    state = serve(ema(), 3, accepted=1.0)
    assert seen(state)["since_last"] is None
    assert seen(state, before=state)["state"] == "idle"
    assert seen(serve(ema(), 1, accepted=1.0), before=state)["since_last"] is None  # it restarted
    not_asked = seen(None)
    assert (not_asked["state"], not_asked["words"]) == ("not adaptive", "started without adaptive speculation")
    cannot = seen({"active": False, "reason": "topk is 4"})
    assert (cannot["state"], cannot["words"]) == ("not adaptive", "asked to adapt, but it cannot: topk is 4")
    assert "cannot: topk is 4" in drawn(cannot)


def test_degraded_says_what_the_steps_stay_at() -> None:
    found = ema()
    found.policy_failed(RuntimeError("broken"))
    view = seen(serve(found, 1, accepted=0.5))
    assert view["state"] == "degraded"
    assert view["words"] == "the policy was set aside; the steps stay at 3: policy ema raised RuntimeError: broken"
    assert "degraded" in drawn(view) and view["words"] in line(view)


@pytest.mark.parametrize("width", [100, 60])
def test_screen_of_the_throughput_policy(width: int) -> None:
    ticks = Ticks()
    found = controller(ThroughputPolicy(3), RoundClock(ticks))
    serve(found, 30, accepted=1.0)
    ticks.now += SPEEDUP_SECONDS
    before = found.snapshot()
    view = seen(serve(found, 30, accepted=1.0), before)
    text = drawn(view, width=width)
    assert "\x1b" not in text and max(map(len, text.splitlines())) <= width
    for part in ("serving", "throughput", "accept length", "tokens/s", "why", "acceptance by position"):
        assert part in text
    live = view["adaptive"]["current_steps"]
    assert sum(line.lstrip().startswith(f"> {live} ") for line in text.splitlines()) == 1
    assert f"of {view['adaptive']['switches']} switches" in text
    if width == 100:
        gain = {one["steps"]: f"{one['times']:.2f}" for one in view["adaptive"]["speedup"]["against"]}
        assert gain.keys() >= {0, 3} and all(row(text, steps)[-3] == told for steps, told in gain.items())


BUILT = (0, 1, 3, 7)
LADDERS = [ladder for count in range(1, 5) for ladder in combinations(BUILT, count) if ladder != (0,)]


def test_rounds_of_lookups_are_shown_beside_the_steps() -> None:
    policy = ThroughputPolicy(3, ThroughputOptions(candidate_steps=BUILT, lookup=True))
    found = controller(policy, RoundClock(Ticks()), looks_up=True)
    state = serve(found, 5, accepted=1.0)
    text = drawn(seen(state))
    assert all(row(text, drafts)[3:] == ["looked", "up", "-"] for drafts in KINDS)
    assert "verify 4, 8, 15 and 31 drafts looked up" in "\n".join(explain(state))
    assert "left out" not in "\n".join(explain(state))


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
    assert states[-1]["tiers"] == list(BUILT) and found.policy.candidate_steps == list(ladder)
    for before, state in pairwise(states):
        view = seen(state, before)
        left_out = len(BUILT) - len(ladder) if policy == "throughput" else 0
        assert drawn(view).count("not used now") == left_out
        assert drawn(view, width=60) and line(view)
        told = "\n".join(explain(state))
        assert f"configured depths: {listed(ladder)}." in told
        assert ("Built, but not used by the current configuration:" in told) is (len(ladder) < len(BUILT))
    names = {name for name, _, value in series(found) if math.isfinite(value)}
    assert names >= {"rounds_total", "position_reached_tokens_total"}
    assert all(found.history(span)["buckets"] for span in SPANS)


def successor(found: AdaptiveController, policy: str, ladder: tuple[int, ...]) -> AdaptivePolicy:
    """Return the policy that a server builds for a later configuration; see ``policies.build_successor``."""
    depths = {"candidate_steps": list(ladder)}
    config = check_config({"1": depths} if policy == "ema" else {"throughput": depths}, "test")
    new = config.build_policy(found.states.live.steps)
    new.take_over(found.policy, found.states.captured)
    return new


def test_an_alarm_is_shown() -> None:
    assert "alarm" not in drawn(seen(serve(ema(), 3, accepted=0.5)))
    assert "alarm                   acceptance: planted" in drawn(seen(serve(with_alarm(ema()), 3, accepted=0.5)))


def test_line_of_a_reading() -> None:
    first = serve(ema(), 1, accepted=1.0)
    found = ema()
    serve(found, 1, accepted=1.0)
    later = serve(found, 12, accepted=1.0, batch_size=2)
    assert line(seen(first)).endswith("serving: the policy decides, steps 3")
    assert line(seen(later, first, seconds=2.0)).endswith(", steps 3, 48.0 tokens/s, accept length 4.00")
    assert line(seen(later, later)).endswith("idle: no round since the last reading, steps 3")


@pytest.mark.parametrize(
    ("status", "body", "told"),
    [(500, b"oops", "GET /server_info: 500 oops"), (200, b"<html>", "it answers, but not like an SGLang server")],
)
def test_servers_that_tell_nothing(status: int, body: bytes, told: str) -> None:
    with answering(status, body) as url:
        (found,) = read(Client.from_url(url))
    assert (found["state"], found["words"]) == ("gone", told) and line(found).endswith(f"gone: {told}")


def test_a_replica_that_the_server_lacks_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with answering(200, b'{"internal_states": [{}]}') as url:
        told = refused(capsys, ["watch", "--url", url, "--once", "--replica", "1"])
    assert "--replica: got 1; the server has 1, counted from 0" in told


def test_once_as_json_where_nobody_answers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--url", "http://127.0.0.1:9", "--once", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["state"], found["url"]) == ("gone", "http://127.0.0.1:9")
