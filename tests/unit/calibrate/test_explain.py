"""The output of ``sglang-adaptive explain`` for states of real controllers and policies."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from sglang_adaptive.client import Client
from sglang_adaptive.explain import explain, main
from sglang_adaptive.policy.throughput import ThroughputOptions, ThroughputPolicy
from tests.answering import answering
from tests.fakes import controller, ema, serve, with_alarm


def told(state: dict[str, Any]) -> str:
    return "\n".join(explain(state))


def test_ema_before_the_first_round_after_some_and_at_zero_steps() -> None:
    text = told(ema().snapshot())
    assert "Current depth: 3 steps; configured depths: 0, 1, 3 and 7." in text
    assert "It has not switched yet." in text and "No round has been verified yet." in text
    text = told(serve(ema(), 12, accepted=0.34))
    assert "Batch sizes from 1: 3 steps; the moving average of accepted drafts is" in text
    assert "It goes down to 1 at 0.25 or below and up to 7 above 2.50." in text
    assert "Rounds so far: 12, 100% at 3; 33% of the drafts were accepted." in text
    text = told(serve(ema(warmup_batches=0, update_interval=1, ema_alpha=1.0), 1, accepted=0.0))
    assert "Without drafts nothing is learned, so the next decision tries the next depth." in text


def test_switches_holds_and_failures_have_their_reason() -> None:
    said = r"Last of 1 switches, \d{4}-\d\d-\d\d \d\d:\d\d:\d\d: 3 to 7 steps, because recent acceptance favored it\."
    assert re.search(said, told(serve(ema(), 40, accepted=1.0)))
    found = ema()
    found.force_steps(7)
    assert "An operator holds the depth at 7" in told(serve(found, 1, accepted=0.5))
    found = ema()
    found.policy_failed(RuntimeError("broken"))
    text = told(serve(found, 1, accepted=0.5))
    assert "set aside: policy ema raised RuntimeError: broken." in text
    assert "holds the depth at 3 until" in text and "moving average" not in text


def test_alarms_of_every_replica_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    sentence = r"Alarm since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d, acceptance: planted(; docs/\S+ has likely causes)\."
    assert "Alarm" not in told(ema().snapshot())
    assert re.search(sentence, told(with_alarm(ema()).snapshot()))
    states = [{**ema().snapshot(), "dp_rank": 0}, {**with_alarm(ema()).snapshot(), "dp_rank": 1}]
    with answering(200, json.dumps({"internal_states": [{"adaptive": state} for state in states]}).encode()) as url:
        assert main(["--url", url]) == 0
    assert re.fullmatch(f"Replica 1: {sentence}", capsys.readouterr().out.splitlines()[-1])


def test_throughput_gives_reason_and_every_depth() -> None:
    lines = list(explain(serve(controller(ThroughputPolicy(3)), 60, accepted=1.0)))
    text = "\n".join(lines)
    assert "Why: " in text and "Chance to accept a draft after the one before it, at positions 1 to 7:" in text
    rows = [line.split() for line in lines if line.startswith("  ") and line.split()[0].isdigit()]
    assert [int(row[0]) for row in rows] == [0, 1, 2, 3, 5, 7]
    assert sum("<- live" in line for line in lines) == 1


@pytest.mark.parametrize("megabytes", [0, 1])
def test_only_sources_that_exist_are_told(megabytes: int) -> None:
    policy = ThroughputPolicy(3, ThroughputOptions(lookup=True, lookup_memory_mb=megabytes))
    text = told(controller(policy, looks_up=True).snapshot())
    assert "Those of each request's own text have brought 0 tokens in 0 rounds." in text
    assert ("Those of other requests' texts have brought 0 tokens in 0 rounds." in text) is bool(megabytes)


def test_probes_say_of_which_time_each_share_is() -> None:
    state = serve(controller(ThroughputPolicy(3)), 60, accepted=1.0)
    probes = {"started": 4, "charged_seconds": 0.32, "share": 0.0213, "budget": 0.005}
    *_, lost, budget = explain({**state, "probes": probes})
    assert lost.startswith("4 probes of other depths have cost at most 0.32 s, 2.13% of the time of all the policy's")
    assert budget.startswith("Their budget is 0.50% of that time plus an advance of 3 rounds")


def test_a_server_of_another_kind(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(Client, "server_info", lambda self: "<html>")
    assert main(["--url", "http://127.0.0.1:9"]) == 1
    assert "answers, but not like an SGLang server" in capsys.readouterr().err
