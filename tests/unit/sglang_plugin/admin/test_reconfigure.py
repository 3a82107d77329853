"""Another configuration while the server runs: the switch of policies, the checks, and the entry points."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sglang.srt import runtime_context
from sglang.srt.runtime_context import get_parallel

from sglang_adaptive.policy.choice import CapturedSteps, Coming, drafted
from sglang_adaptive.policy.config import check_config, describe_change, file_stamp
from sglang_adaptive.policy.errors import ConfigError
from sglang_adaptive.policy.observation import RoundNote, RoundObservation
from sglang_adaptive.policy.profile import ProfileKey
from sglang_adaptive.policy.throughput import ThroughputOptions, ThroughputPolicy
from sglang_adaptive.sglang_plugin.admin import config_changes, handlers
from sglang_adaptive.sglang_plugin.admin.config_changes import ConfigChanges
from sglang_adaptive.sglang_plugin.admin.handlers import CONFIG_KEY, Change, Reconfigure, pack, unpack
from sglang_adaptive.sglang_plugin.admin.route import AdminRoute
from sglang_adaptive.sglang_plugin.start.controller import build_successor
from tests import fakes
from tests.asgi import application, posted, until
from tests.fakes import Learner, ScriptedPolicy, ema, serving, stages_of
from tests.loops import in_a_loop

SLOTS = {"1": {"candidate_steps": [1, 3]}, "8": {"candidate_steps": [1], "ema_alpha": 0.3}}
KEY = ProfileKey("target", "draft", "GPU", 1, 1, "fa3", {}, {})


# -- the controller -------------------------------------------------------------------------------------------


def test_new_policy_decides_from_the_next_round_on_and_never_inside_one() -> None:
    controller, worker, _, _ = serving(answer=3)
    controller.choose(2)
    successor = ScriptedPolicy([0, 7], 7)
    controller.replace_policy(successor, by="a test")
    assert worker.speculative_num_steps == 3  # the round in flight keeps its depth
    assert successor._graph_sizes == [1, 2, 4, 8]
    controller.verified([2, 1], 2, RoundNote(drafted(3)))  # and its result arrives under the new policy
    assert worker.speculative_num_steps == 3
    assert successor.seen == [RoundNote(drafted(3), [2, 1], 2)]
    controller.choose(2)
    assert worker.speculative_num_steps == 7
    shown = controller.snapshot()
    assert shown["rounds_by_tier"] == {"3": 1} and shown["accepted_by_tier"] == {"3": 3}
    assert [switch["cause"] for switch in shown["recent_switches"]] == ["configuration"]
    assert shown["config_changed"] == {"time": 100.0, "by": "a test"}
    successor.answer = 0
    controller.choose(2)
    assert controller.snapshot()["recent_switches"][-1]["cause"] == "acceptance"


def test_policy_that_needs_an_unbuilt_depth_changes_nothing() -> None:
    controller, _, policy, _ = serving()
    with pytest.raises(ValueError, match=r"no runtime state for \[5\] steps; built at start-up: \(0, 1, 3, 7\)"):
        controller.replace_policy(ScriptedPolicy([1, 5], 1), by="a test")
    assert controller.policy is policy and controller.snapshot()["config_changed"] is None


def test_replacing_a_failed_policy_ends_the_degradation() -> None:
    controller, worker, policy, _ = serving(answer=7)
    policy.fails_on = "choose"
    controller.choose(1)
    assert controller.snapshot()["degraded"]
    controller.replace_policy(ScriptedPolicy([0, 7], 7), by="a test")
    controller.choose(1)
    assert worker.speculative_num_steps == 7 and not controller.snapshot()["degraded"]


def test_forced_depth_outlives_the_policy() -> None:
    controller, worker, _, _ = serving(answer=1)
    controller.force_steps(7)
    controller.replace_policy(ScriptedPolicy([0, 1], 0), by="a test")
    controller.choose(8)
    assert worker.speculative_num_steps == 7
    controller.force_steps(None)
    controller.choose(8)
    assert worker.speculative_num_steps == 0


def test_cost_is_shared_for_the_new_policy_and_no_longer_for_the_old_one() -> None:
    old, new, calls = Learner(), Learner(), []
    controller = fakes.controller(old, share_cost=lambda payload: calls.append("old") or payload)
    controller.replace_policy(new, by="a test", share_cost=lambda payload: calls.append("new") or payload)
    for _ in range(2):
        controller.verified([1], 1)
    assert calls == ["new"] and new.table == {"rounds": 2} and old.table is None
    controller.replace_policy(ScriptedPolicy([0, 1], 1), by="a test")  # learns nothing
    controller.verified([1], 1)
    assert calls == ["new"]


# -- what a policy takes over ---------------------------------------------------------------------------------


def served(policy: ThroughputPolicy, rounds: int, accepted: float, seconds: Callable[[int], float]) -> None:
    """Play *rounds* rounds of two requests in which a share *accepted* of every ten drafts is accepted."""
    policy.set_cuda_graph_bs(None)
    for index in range(rounds):
        steps = policy.choose(Coming(2)).steps
        good = min(steps, int(10 * accepted)) if index % 10 < 10 * accepted else 0
        policy.observe(RoundObservation(drafted(steps), [good, good], 2, seconds(steps)))
        if policy.cost_sync_due:
            policy.import_cost(policy.export_cost())


def test_throughput_policy_goes_on_from_what_the_former_one_learnt() -> None:
    former = ThroughputPolicy(3, ThroughputOptions(candidate_steps=(0, 1, 3, 7)))
    served(former, 300, 0.9, lambda steps: 0.010 + 0.0005 * steps)
    profile = former.known_profile(KEY, "test")
    assert profile.cells
    successor = ThroughputPolicy(3, ThroughputOptions(candidate_steps=(1, 3), memory_rounds=50), profile)
    successor.take_over(former, CapturedSteps({}))
    known = former.acceptance_by_position()[:3]
    assert successor.acceptance_by_position() == pytest.approx(known, abs=0.02)
    fresh = ThroughputPolicy(3, ThroughputOptions(candidate_steps=(1, 3)))
    assert abs(fresh.acceptance_by_position()[0] - known[0]) > 0.1
    timed = max(profile.cells, key=lambda cell: cell.rounds or 0)
    steps = timed.steps if timed.steps in (1, 3) else 3
    ours, theirs = (policy.prices(2, steps).rate(steps) for policy in (successor, former))
    assert ours == pytest.approx(theirs, rel=0.05)
    assert successor.probe_totals().started == former.probe_totals().started
    served(successor, 50, 0.9, lambda steps: 0.010 + 0.0005 * steps)
    successor.observe(RoundObservation(drafted(7), [7, 0], 2, 0.02))  # late, of a depth that it does not have


def test_profile_that_the_former_policy_began_with_is_not_lost() -> None:
    first = ThroughputPolicy(3, ThroughputOptions(candidate_steps=(1, 3)))
    served(first, 100, 0.9, lambda steps: 0.010 + 0.0005 * steps)
    begun_with = first.known_profile(KEY, "test")
    second = ThroughputPolicy(3, ThroughputOptions(candidate_steps=(1, 3)), begun_with)
    assert second.known_profile(KEY, "test").cells == begun_with.cells


def test_throughput_policy_chooses_only_what_has_graphs() -> None:
    built = CapturedSteps({0: (1, 2, 8), 3: (1, 2, 8), 7: (1, 2)})
    policy = ThroughputPolicy(7, ThroughputOptions(candidate_steps=(3, 7)))
    policy.set_cuda_graph_bs([1, 2, 8])
    policy.take_over(ScriptedPolicy([3, 7], 3), built)
    assert policy.choose(Coming(5)).steps == 3  # padded to 8
    assert policy.cuda_graph_bs_for_step(7) == [1, 2]


# -- the check against what was built -------------------------------------------------------------------------

BUILT = CapturedSteps({0: (1, 2, 4, 8), 1: (1, 2, 4, 8), 3: (1, 2, 4, 8), 7: (1, 2, 4)})
UNBUILT: list[tuple[dict[str, Any], str]] = [
    ({"1": {"candidate_steps": [1, 5]}}, "1.candidate_steps: needs 5, which was not built when the server started"),
    ({"throughput": {"candidate_steps": [2, 3]}}, "throughput.candidate_steps: needs 2, which was not built"),
    ({"policy": "throughput"}, "throughput.candidate_steps: needs 2, 5, which was not built"),
    ({"1": {"candidate_steps": [7]}}, "1.candidate_steps: needs 7, which has no CUDA graphs at batch size 8"),
    ({"1": {"candidate_steps": [1]}, "5": {"candidate_steps": [3, 7]}}, "5.candidate_steps: needs 7, which has no"),
    ({"throughput": {"candidate_steps": [7]}}, "throughput.candidate_steps: needs 7, which has no CUDA graphs"),
]
FITTING: list[dict[str, Any]] = [
    {"1": {"candidate_steps": [0, 1, 3]}},
    {"4": {"candidate_steps": [7]}, "5": {"candidate_steps": [3]}},
    {"throughput": {"candidate_steps": [3, 7]}},
]


@pytest.mark.parametrize(("cfg", "told"), UNBUILT, ids=range(len(UNBUILT)))
def test_configuration_that_needs_what_was_not_built(cfg: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_config(cfg, "my.json").require_built(BUILT)
    line = str(caught.value)
    assert line.startswith(f"my.json: {told}") and "; expected depths among 0, 1, 3" in line


@pytest.mark.parametrize("cfg", FITTING, ids=range(len(FITTING)))
def test_configuration_that_fits(cfg: dict[str, Any]) -> None:
    check_config(cfg, "my.json").require_built(BUILT)
    check_config(cfg, "my.json").require_built(CapturedSteps.from_pairs(json.loads(json.dumps(BUILT.as_pairs()))))
    check_config(cfg, "my.json").require_built(CapturedSteps(dict.fromkeys(BUILT.graphs)))


def test_lookups_that_the_server_started_without() -> None:
    asked = check_config({"throughput": {"candidate_steps": [0, 1, 3], "lookup": True}}, "my.json")
    with pytest.raises(ConfigError, match=r"^my.json: throughput.lookup: asks for rounds that the server started wit"):
        asked.require_built(BUILT, check_config({}, "my.json").as_dict())
    asked.require_built(BUILT, asked.as_dict())  # another option may change beside it


def test_change_is_told_in_one_line() -> None:
    before = check_config(SLOTS, "f").as_dict()
    after = check_config({**SLOTS, "8": {"candidate_steps": [1, 3], "ema_alpha": 0.4}, "watch": True}, "f").as_dict()
    assert describe_change(before, after) == (
        "watch: false -> true, 8.candidate_steps: [1] -> [1, 3], 8.ema_alpha: 0.3 -> 0.4"
    )
    assert describe_change(before, before) == "nothing differs"
    throughput = describe_change(before, check_config({}, "f").as_dict())
    assert throughput.startswith('policy: "ema" -> "throughput", 1: {') and "-> none" in throughput


# -- the way in -----------------------------------------------------------------------------------------------


class Schedulers:
    """Records what a scheduler's handler would get; each message is unpacked as there."""

    def __init__(self, config: dict[str, Any] | None = None) -> None:
        """*config* is the initial configuration."""
        self.config = check_config(config or {}, "f").as_dict()
        self.changes: list[Change] = []
        self.updated = [True, True]

    async def __call__(self, change: Change) -> list[bool]:
        message = SimpleNamespace(server_args=pack(CONFIG_KEY, change))
        unpack(message)
        self.changes.append(message.server_args[CONFIG_KEY])
        self.config = check_config(change.config, "f").as_dict()
        return self.updated

    async def in_force(self) -> dict[str, Any]:
        return self.config


async def same(body: bytes) -> bytes:
    return body


stock = application(same, status=299)
"""The application behind the layer: it returns what reached it."""


def post(route: AdminRoute, body: bytes, method: str = "POST") -> tuple[int, bytes]:
    return asyncio.run(posted(route, body, method))


def changes_of(cfg: dict[str, Any], file: Path | None = None) -> tuple[ConfigChanges, Schedulers]:
    schedulers = Schedulers(cfg)
    watched = (None, None) if file is None else (str(file), file_stamp(file))
    return ConfigChanges(schedulers, schedulers.in_force, BUILT, *watched), schedulers


def routed() -> tuple[AdminRoute, Schedulers]:
    changes, schedulers = changes_of(SLOTS)
    return AdminRoute(stock, [0, 1, 3, 7], None, changes), schedulers


def wanted(value: Any, **others: Any) -> bytes:
    return json.dumps({"server_args": {CONFIG_KEY: value, **others}}).encode()


REFUSED: list[tuple[bytes, str]] = [
    (wanted({"1": {"candidate_steps": [1, True]}}), "1.candidate_steps[1]: got true; expected an integer from 0 to 32"),
    (wanted({"1": {"candidate_steps": [5]}}), "1.candidate_steps: needs 5, which was not built"),
    (wanted({"up_histeresis": 1}), 'did you mean "up_hysteresis"?'),
    (wanted({"watch": 1}), "watch: got 1; expected true or false"),
    (wanted({**SLOTS, "exact": False}), "exact: got false; expected true: it is read only at server start"),
    (wanted(None), "got null; expected a configuration object"),
    (wanted([SLOTS]), "expected a configuration object"),
    (wanted(SLOTS, adaptive_force_steps=3), 'comes together with ["adaptive_force_steps"]'),
    (b'{"server_args": {"adaptive_config": {"1": {}, "1": {}}}}', "1: the key is given more than once"),
    (b'{"server_args": {"adaptive_config": {}, "x": "' + b"y" * (1 << 20) + b'"}}', "larger than 1048576 bytes"),
    (json.dumps({"server_args": pack(CONFIG_KEY, Change(SLOTS, "f", "forged"))}).encode(), "comes together with"),
]


@pytest.mark.parametrize(("body", "told"), REFUSED, ids=range(len(REFUSED)))
def test_refused_request_reaches_no_scheduler(body: bytes, told: str, caplog: pytest.LogCaptureFixture) -> None:
    route, schedulers = routed()
    with caplog.at_level(logging.WARNING):
        status, answer = post(route, body)
    line = json.loads(answer)["error"]["message"]
    assert status == 400 and line.startswith(CONFIG_KEY) and told in line and "\n" not in line
    assert schedulers.changes == []
    assert [record.message for record in caplog.records] == [f"adaptive: configuration from 10.0.0.7:5 refused: {line}"]


@pytest.mark.parametrize("value", ["[" * 900 + "]" * 900, '"' + "y" * 10**6 + '"', "9" * 19], ids=len)
def test_a_forced_depth_is_refused_in_a_short_line_whatever_it_is(value: str) -> None:
    route, _ = routed()
    status, answer = post(route, f'{{"server_args": {{"adaptive_force_steps": {value}}}}}'.encode())
    line = json.loads(answer)["error"]["message"]
    assert status == 400 and line.startswith("adaptive_force_steps: got ") and len(line) < 300


def test_refusal_of_one_scheduler_is_told() -> None:
    route, schedulers = routed()
    schedulers.updated = [True, False]
    status, answer = post(route, wanted(SLOTS))
    assert status == 400 and b"1 of 2 schedulers refused it" in answer


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "DELETE", "PATCH"])
def test_method_that_the_key_check_lets_through_is_not_ours(method: str) -> None:
    """SGLang asks for the administrator's key only if method and path are those of its route."""
    route, schedulers = routed()
    assert post(route, wanted(SLOTS), method) == (299, wanted(SLOTS))
    assert schedulers.changes == []


def test_inactive_server_says_why() -> None:
    status, answer = post(AdminRoute(stock, [], "topk is 4"), wanted(SLOTS))
    assert (status, json.loads(answer)) == (
        400, {"error": {"message": "adaptive_config: adaptive speculation is off: topk is 4"}}
    )  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [
        *("adaptive_config ", "adaptive_config {}", 'adaptive_config {"config": 3}', "other"),
        *("adaptive_audit {", 'adaptive_audit {"replica": 0}', "adaptive_audit []"),
        'adaptive_audit {"replica": 0, "epoch": 0, "request": "x", "verdict": "foo"}',
        'adaptive_audit {"replica": 0, "epoch": 0, "request": "x", "verdict": "tie", "noise": "much"}',
        *("adaptive_force_steps {}", 'adaptive_force_steps {"steps": "3"}', 'adaptive_force_steps {"steps": [3]}'),
    ],
)
def test_name_that_carries_nothing_is_left_to_sglang(name: str) -> None:
    message = SimpleNamespace(server_args={name: 1})
    unpack(message)
    assert message.server_args == {name: 1}


# -- the file -------------------------------------------------------------------------------------------------


def rewrite(path: Path, content: str) -> None:
    path.write_text(content)
    later = path.stat().st_mtime_ns + 10**9  # as an editor would, some time later
    os.utime(path, ns=(later, later))


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(config_changes, "POLL_SECONDS", 0.005)
    path = tmp_path / "adaptive.json"
    path.write_text(json.dumps({**SLOTS, "watch": True}))
    return path


@in_a_loop
async def test_watched_file_is_read_again_when_it_changes(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    changes, schedulers = changes_of({**SLOTS, "watch": True}, file)
    new = {"1": {"candidate_steps": [3]}, "watch": True}
    changes.start()
    rewrite(file, json.dumps({"1": {"candidate_steps": [5]}}))
    await until(lambda: len(caplog.records) == 1)
    await asyncio.sleep(0.05)  # told once
    rewrite(file, json.dumps(new))
    await until(lambda: len(schedulers.changes) == 1)
    rewrite(file, json.dumps(SLOTS))  # no longer watched after this
    await until(lambda: len(schedulers.changes) == 2)
    rewrite(file, json.dumps(new))
    await asyncio.sleep(0.05)
    assert schedulers.changes == [Change(new, str(file), "watch"), Change(SLOTS, str(file), "watch")]
    (line,) = [record.message for record in caplog.records]
    assert line.startswith(f"adaptive: watch: {file}: 1.candidate_steps: needs 5, which was not built")
    assert line.endswith("; the old configuration stays in force")


@in_a_loop
async def test_a_file_is_watched_from_when_a_client_of_another_worker_asks_for_it(file: Path) -> None:
    first, schedulers = changes_of(SLOTS, file)
    second = ConfigChanges(schedulers, schedulers.in_force, BUILT, str(file), file_stamp(file))
    new = {"1": {"candidate_steps": [3]}}
    second.start()
    await first.request({**SLOTS, "watch": True}, "a client")
    rewrite(file, json.dumps(new))
    await until(lambda: len(schedulers.changes) == 2)
    assert schedulers.changes[1] == Change(new, str(file), "watch")


@pytest.fixture
def scheduler(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """SGLang's arguments for speculation, and the ranks, as in a scheduler."""
    spec = SimpleNamespace(speculative_algorithm="EAGLE3", enable_multi_layer_eagle=False)
    monkeypatch.setattr(runtime_context, "get_spec", lambda: spec)
    with get_parallel().override(tp_group=SimpleNamespace(rank_in_group=0), attn_dp_size=1):
        yield


def reconfigure(handler: Reconfigure, config: dict[str, Any], by: str = "10.0.0.7:5") -> None:
    change = Change(dict(config), "f", by)
    handler.validate(CONFIG_KEY, change)
    handler.apply(CONFIG_KEY, change)


def test_what_was_read_at_the_start_stays_and_is_shown(scheduler: None) -> None:
    controller = ema()
    started = {**SLOTS, "exact": False, "warm_up": False}
    controller.replace_policy(check_config(started, "f").build_policy(1), by="a test")
    handler = Reconfigure(stages_of(controller))
    reconfigure(handler, {"1": {"candidate_steps": [1, 3]}})
    shown = controller.snapshot()["config"]
    assert (shown["exact"], shown["warm_up"], list(shown).count("8")) == (False, False, 0)
    refused = handler.problem(CONFIG_KEY, Change({**SLOTS, "exact": True}, "f", "10.0.0.7:5"))
    assert refused == "f: exact: got true; expected false: it is read only at server start"


@pytest.mark.parametrize(("by", "changed"), [("watch", False), ("SIGHUP", True), ("10.0.0.7:5", True)])
def test_a_watched_file_that_says_what_is_in_force_changes_nothing(
    by: str, changed: bool, monkeypatch: pytest.MonkeyPatch, scheduler: None
) -> None:
    made = []  # the scheduler saves each one's times when it ends

    def build(*args: Any) -> Any:
        made.append(build_successor(*args))
        return made[-1]

    monkeypatch.setattr(handlers, "build_successor", build)
    controller = ema()
    handler, before, in_force = Reconfigure(stages_of(controller)), controller.policy, controller.snapshot()["config"]

    reconfigure(handler, in_force, by)
    assert (controller.policy is not before) is bool(made) is changed
    assert (controller.snapshot()["config_changed"] is not None) is changed
    reconfigure(handler, {"1": {"candidate_steps": [1, 3]}}, by)
    assert controller.policy.candidate_steps == [1, 3]


@pytest.mark.parametrize("by", ["watch", "SIGHUP"])
@in_a_loop
async def test_a_file_cannot_change_what_is_read_at_the_start(
    by: str, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    changes, schedulers = changes_of({**SLOTS, "watch": by == "watch"}, file)
    changes.start()
    rewrite(file, json.dumps({**SLOTS, "exact": False}))
    if by == "SIGHUP":
        os.kill(os.getpid(), signal.SIGHUP)
    await until(lambda: bool(caplog.records or schedulers.changes))
    line = f"adaptive: {by}: {file}: exact: got false; expected true: it is read only at server start"
    assert caplog.messages == [f"{line}; the old configuration stays in force"] and not schedulers.changes


@in_a_loop
async def test_hangup_without_a_file_says_so(caplog: pytest.LogCaptureFixture) -> None:
    changes, _ = changes_of(SLOTS)
    changes.start()
    os.kill(os.getpid(), signal.SIGHUP)
    await until(lambda: bool(caplog.records))
    assert "SIGHUP: command line: no configuration file was given" in caplog.text


@in_a_loop
async def test_file_changed_while_the_server_started_is_noticed(file: Path) -> None:
    changes, schedulers = changes_of({**SLOTS, "watch": True}, file)
    rewrite(file, json.dumps({"1": {"candidate_steps": [3]}}))
    changes.start()
    await until(lambda: len(schedulers.changes) == 1)
