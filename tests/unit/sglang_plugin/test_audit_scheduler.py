"""Which finished requests are decoded again, when, at which steps, and what a verdict does."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from sglang.srt.managers.io_struct import SetInternalStateReq
from sglang.srt.managers.schedule_batch import FINISH_ABORT, FINISH_LENGTH, Req
from sglang.srt.managers.scheduler_components.internal_state import UpdateRejected
from sglang.srt.runtime_context import get_context, get_parallel
from sglang.srt.sampling.sampling_params import SamplingParams

from sglang_adaptive import ties
from sglang_adaptive.policy.choice import drafted
from sglang_adaptive.policy.config import AuditOptions
from sglang_adaptive.policy.observation import RoundNote
from sglang_adaptive.sglang_plugin.admin.handlers import TakeReport, pack, unpack
from sglang_adaptive.sglang_plugin.stages import audit_scheduler
from sglang_adaptive.sglang_plugin.stages.audit_scheduler import AUDITED, MOST_WAITING, REPORT_KEY, Audits, Report
from tests.fakes import serving, stages_of

PROMPT, OUTPUT = [5, 6, 7], [11, 12, 13, 14]


@pytest.fixture(autouse=True)
def one_rank() -> Iterator[None]:
    parallel = {"tp_group": SimpleNamespace(rank_in_group=0), "attn_dp_size": 1, "dp_rank": None}
    with get_context().override_server_args(), get_parallel().override(**parallel):
        yield


def done(rid: str = "mine", output: list[int] = OUTPUT, reason: Any = None, how: Any = None, **more: Any) -> Req:
    sampling = SamplingParams(**{"temperature": 0, **(how or {})})
    req = Req(rid, "", array("q", PROMPT), sampling, **more)
    req.output_ids.extend(output)
    req.finished_reason = reason or FINISH_LENGTH(len(output))
    return req


def audits(share: float = 1.0) -> Audits:
    return Audits(serving()[0], AuditOptions(share))


def report(verdict: str = ties.WRONG, **more: Any) -> Report:
    return Report(**{"replica": 0, "epoch": 0, "request": "mine", "verdict": verdict, "at": 2, "gap": 3.5, **more})


def test_a_greedy_request_is_decoded_again_as_it_was_asked() -> None:
    how = {
        "min_new_tokens": 9, "stop_token_ids": [4, 2], "stop": "end", "frequency_penalty": 0.5,
        "presence_penalty": 0.25, "repetition_penalty": 1.5, "logit_bias": {"3": -1.0}, "ignore_eos": True,
    }  # fmt: skip
    found = audit_scheduler.question(done(how=how))
    assert found is not None and json.loads(json.dumps(found)) == found, "it travels as JSON does"
    assert (found["request"], found["prompt"], found["output"]) == ("mine", PROMPT, OUTPUT)
    again = {**how, "temperature": 0, "max_new_tokens": 4, "min_new_tokens": 4, "stop_token_ids": [2, 4]}
    assert found["sampling"] == {key: value for key, value in again.items() if key != "stop"}
    SamplingParams(**found["sampling"]).verify(100)


@pytest.mark.parametrize(
    "told",
    [
        *({"how": {"temperature": 0.7}}, {"how": {"json_schema": "{}"}}, {"how": {"regex": "a*"}}),
        *({"how": {"custom_params": {"banned": 1}}}, {"how": {"beam_width": 2}}, {"lora_id": "adapter"}),
        *({"input_embeds": [[0.5]]}, {"custom_logit_processor": "{}"}, {"reason": FINISH_ABORT()}),
        *({"output": [11]}, {"output": [11] * audit_scheduler.MOST_TOKENS}),
    ],
    # Not the values: every process must collect the same names, and an object's name has its address.
    ids=lambda told: ".".join((*told, *told.get("how", ()))),
)
def test_other_requests_are_left_out(told: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_scheduler, "COMPARED", audit_scheduler.MOST_TOKENS)
    assert audit_scheduler.question(done(**told)) is None


def test_the_first_tokens_of_a_long_text_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_scheduler, "COMPARED", 3)
    found = audit_scheduler.question(done())
    assert found is not None and found["output"] == OUTPUT[:3] and found["sampling"]["max_new_tokens"] == 3


def test_one_is_taken_while_the_scheduler_is_idle_and_a_few_wait_for_that() -> None:
    mine = audits()
    for number in range(MOST_WAITING + 2):
        mine.add(done(f"{number}"))
    mine.add(done(f"{AUDITED}1"))
    assert mine.report()["waiting"] == MOST_WAITING and mine.report()["unfinished"] == 2
    assert mine.take(is_idle=False) == {"is_on": True, "finished": None}
    assert mine.take(is_idle=True)["finished"]["request"] == "2"
    assert mine.report()["waiting"] == MOST_WAITING - 1


def test_the_share_is_that_of_finished_requests() -> None:
    mine = audits(0.25)
    mine._draw.seed(1)
    kept = 0
    for _ in range(400):
        mine.add(done())
        kept += mine.take(is_idle=True)["finished"] is not None
    assert 70 <= kept <= 130


def test_nothing_is_kept_without_the_option_or_in_the_warm_up() -> None:
    mine = audits()
    mine._controller.warm_up.begin()
    mine.add(done())
    assert not mine.report()["waiting"]
    mine._controller.end_warm_up()
    mine.change(None)
    mine.add(done())
    assert mine.take(is_idle=True) == {"is_on": False, "finished": None}
    assert mine._controller.snapshot()["audit"] is None


def test_what_other_weights_have_written_is_not_compared() -> None:
    mine = audits()
    mine.add(done("before"))
    mine.weights_changed()
    mine.add(done("it began before"))
    assert mine.take(is_idle=False)["finished"] is None and mine.take(is_idle=True)["finished"] is None
    mine.add(done("after"))
    taken = mine.take(is_idle=True)["finished"]
    assert (taken["request"], taken["epoch"]) == ("after", 1)
    mine.count(report(epoch=0))
    assert mine.report()["wrong"] == 0 and not mine._controller.snapshot()["degraded"]


def test_a_round_of_audited_requests_alone_runs_at_zero_steps_and_teaches_nothing() -> None:
    controller, worker, policy, _ = serving(answer=7)
    mine = Audits(controller, AuditOptions(1.0))
    controller.choose(1)
    controller.force_steps(3)
    reqs = [done(f"{AUDITED}{number}") for number in range(2)]
    mine.update_running_batch(lambda _, batch: batch, None, SimpleNamespace(reqs=reqs))
    controller.choose(2)
    assert worker.speculative_num_steps == 0 and mine.has_all(reqs)
    controller.verified([0, 0], 2, RoundNote(drafted(0), audit=True))
    assert not policy.seen and not controller.snapshot()["rounds_by_tier"]
    mine.update_running_batch(lambda _, batch: batch, None, SimpleNamespace(reqs=[done("a user's")]))
    controller.choose(1)
    assert worker.speculative_num_steps == 3
    assert [switch["cause"] for switch in controller.snapshot()["recent_switches"]][1:] == ["audit", "forced"]
    assert all(req.to_finish is None for req in reqs)


def test_a_text_that_ends_is_said_to() -> None:
    assert report(gap=None).words() == "token 2 of request mine: one text ends there"


def test_another_replica_steps_down_and_counts_nothing() -> None:
    mine = audits()
    mine.count(report(replica=1))
    assert mine.report()["wrong"] == 0 and mine._controller.snapshot()["degraded"]


def test_a_report_travels_in_a_name() -> None:
    message = SetInternalStateReq(server_args=pack(REPORT_KEY, report()))
    unpack(message)
    assert message.server_args == {REPORT_KEY: report()}
    mine = audits()
    handler = TakeReport(stages_of(mine._controller, mine))
    handler.validate(REPORT_KEY, message.server_args[REPORT_KEY])
    handler.apply(REPORT_KEY, message.server_args[REPORT_KEY])
    assert mine.report()["wrong"] == 1 and mine.report()["proved"] and not mine.is_on
    mine.change(AuditOptions(1.0))
    assert mine.report()["wrong"] == 1 and mine.report()["proved"] is None and mine.is_on
    for taken in (TakeReport(stages_of(mine._controller)), handler):
        with pytest.raises(UpdateRejected, match="expected a report"):
            taken.validate(REPORT_KEY, 1)


@pytest.mark.parametrize(
    ("launch", "told"), [({"tp_size": 2, "attn_dp_size": 2, "moe_ep_size": 2}, "attention DP"), ({}, "disaggregation")]
)
def test_some_launches_rule_it_out(
    launch: dict[str, int], told: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from sglang.srt.runtime_context import get_disagg

    with get_parallel().override(**launch), get_disagg().override(disaggregation_mode="null" if launch else "decode"):
        mine = audits()
    mine.add(done())
    assert told in mine.report()["reason"] and not mine.take(is_idle=True)["is_on"]
    assert "adaptive: audit is off: " in caplog.text


def test_a_fault_ends_the_audit_alone(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    mine = audits()
    broken = done()
    broken.sampling_params = None
    mine.add(broken)
    mine.add(done())
    assert "AttributeError" in mine.report()["reason"] and not mine.report()["waiting"] and not mine.is_on
    assert "adaptive: disabled audit after an error" in caplog.text
