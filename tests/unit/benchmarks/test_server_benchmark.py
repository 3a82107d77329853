"""The pure parts of the benchmark against live servers: the draw, the counters, the arithmetic, the tables."""

from __future__ import annotations

import dataclasses
import json
import random
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.server import hosts, results, round_profile, shapes, simulated, two_ranks
from benchmarks.server.__main__ import main
from benchmarks.server.compare import best_static, rates, table
from benchmarks.server.load import Answer, request_body
from benchmarks.server.matrix import Matrix, contenders, run
from benchmarks.server.numbers import percentile, percentiles, shares, spread, summed_up
from benchmarks.server.passes import row
from benchmarks.server.plot import _latencies, plot
from benchmarks.server.policies import POLICIES, Policy
from benchmarks.server.process import RING, Declared, Process, own
from benchmarks.server.results import SCHEMA, SIMULATED, BadResult, read, read_folder
from benchmarks.server.servers import Running, attach, tiers_built
from benchmarks.server.simulated import Draw, Meter, chances_of, drawn_ahead
from benchmarks.server.summary import summary, targets
from benchmarks.server.workloads.plan import Plan, in_turn, own_p
from sglang_adaptive.cpu_engine.kernels.verify import verify_tree_greedy_cpu
from sglang_adaptive.runtime.controller import AdaptiveController
from sglang_adaptive.sglang_plugin.scheduler import shadow_acceptance
from tests import live_controllers


@pytest.fixture
def process(tmp_path: Path) -> Process:
    return Process(tmp_path / "acceptance", create=True)


def request(acceptance: list[float] | None = None, tokens: int = 0) -> SimpleNamespace:
    parameters = None if acceptance is None else {"acceptance": acceptance}
    return SimpleNamespace(sampling_params=SimpleNamespace(custom_params=parameters), output_ids=[0] * tokens)


def test_held_steps_change_with_others_in_every_round_and_in_no_other(process: Process) -> None:
    """The policy's own rounds are left alone."""
    rounds, alternation = live_controllers.ema(), simulated.Alternation(process)

    def steps(count: int) -> list[int]:
        found = []
        for _ in range(count):
            alternation.choose(AdaptiveController.activate_step_by_batch, rounds, 1)
            found.append(rounds.worker.speculative_num_steps)
        return found

    process.other_steps = 0
    assert set(steps(4)) == {3}
    rounds.force_steps(7)
    assert steps(4) in ([0, 7, 0, 7], [7, 0, 7, 0])
    assert rounds.snapshot().forced_steps == 7
    process.other_steps = None
    assert steps(3) == [7, 7, 7]


# -- the draw ---------------------------------------------------------------------------------------------------


def test_every_position_is_accepted_as_declared_and_requests_are_independent() -> None:
    torch.manual_seed(1)
    declared = [Declared(0.8, 0.9), Declared(0.8, 0.9), Declared(0.0), Declared(1.0)]
    drawn = drawn_ahead(chances_of(declared, "cpu"), 20_000).numpy()
    for position in range(1, 5):
        reached = drawn[:, 0] >= position - 1
        share = (drawn[reached, 0] >= position).mean()
        chance = 0.8 * 0.9 ** (position - 1)
        assert abs(share - chance) < 5 * (chance * (1 - chance) / reached.sum()) ** 0.5
    assert abs(np.corrcoef(drawn[:, 0], drawn[:, 1])[0, 1]) < 5 / 20_000**0.5
    assert abs(np.corrcoef(drawn[1:, 0], drawn[:-1, 0])[0, 1]) < 5 / 20_000**0.5
    assert drawn[:, 2].max() == 0 and drawn[:, 3].min() >= 7


def test_the_expectation_is_the_mean_of_the_draw_at_every_depth() -> None:
    torch.manual_seed(2)
    declared = Declared(0.7, 0.95)
    drawn = drawn_ahead(chances_of([declared], "cpu"), 40_000).numpy()[:, 0]
    for steps in (0, 1, 3, 7):
        tokens = 1 + np.minimum(drawn, steps)
        assert abs(tokens.mean() - declared.expected(steps)) <= 5 * tokens.std() / 200


def test_a_drawn_round_is_what_the_real_verify_would_give(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel, given a target that agrees with exactly the drawn drafts, fills the same tensors."""
    monkeypatch.setattr(simulated, "_same_on_all_ranks", lambda correct: None)
    torch.manual_seed(3)
    requests, steps = 6, 3
    draw = Draw(process)
    draw.begin(None, SimpleNamespace(reqs=[request([0.7, 1.0]) for _ in range(requests)]))
    candidates = torch.randint(0, 50, (requests, steps + 1))
    target = torch.randint(50, 99, (requests, steps + 1))
    nodes = torch.arange(requests * (steps + 1)).view(requests, steps + 1)

    predict = torch.zeros(requests * (steps + 1), dtype=torch.int32)
    correct = torch.zeros(requests, dtype=torch.int32)
    index = draw(nodes.int().clone(), predict, correct, candidates, target, requests, steps)

    agreeing = torch.where(torch.arange(steps + 1) < correct[:, None], candidates.roll(-1, 1), target)
    chain = torch.arange(1, steps + 2).repeat(requests, 1)
    chain[:, -1] = -1
    real_predict, real_correct = torch.zeros_like(predict), torch.zeros_like(correct)
    real_index = torch.full((requests, steps + 1), -1, dtype=torch.int32)
    verify_tree_greedy_cpu(
        predicts=real_predict, accept_index=real_index, accept_token_num=real_correct, candidates=candidates,
        retrive_index=nodes, retrive_next_token=chain, retrive_next_sibling=torch.full_like(chain, -1),
        target_predict=agreeing,
    )  # fmt: skip
    assert len(set(correct.tolist())) > 1
    assert torch.equal(correct, real_correct) and torch.equal(index, real_index)
    accepted = index[index >= 0].long()
    assert torch.equal(predict[accepted], real_predict[accepted])


def test_a_round_without_drafts_is_left_as_the_real_path_made_it(process: Process) -> None:
    index, predict, correct = torch.tensor([[0], [1]]), torch.tensor([7, 8]), torch.tensor([0, 0])
    draw = Draw(process)
    assert draw(index, predict, correct, torch.zeros(2, 1), torch.zeros(2, 1), 2, 0) is index
    assert predict.tolist() == [7, 8] and correct.tolist() == [0, 0]


def test_requests_are_drawn_from_their_own_process(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulated, "_same_on_all_ranks", lambda correct: None)
    process.declared = Declared(0.0)
    draw = Draw(process)
    never, always = request(), request([1.0, 1.0])

    def accepted(*requests: SimpleNamespace) -> list[int]:
        draw.begin(None, SimpleNamespace(reqs=requests))
        tokens = torch.zeros(len(requests), 4, dtype=torch.long)
        correct = torch.zeros(len(requests), dtype=torch.int32)
        draw(tokens.int(), tokens.flatten().int(), correct, tokens, tokens, len(requests), 3)
        return correct.tolist()

    assert accepted(never, always) == [0, 3]
    assert accepted(always, never, always) == [3, 0, 3]
    process.declared = Declared(1.0)
    assert accepted(never, always) == [3, 3]
    with pytest.raises(RuntimeError, match="1 requests are verified, 2 were announced"):
        draw(torch.zeros(1, 2), torch.zeros(2), torch.zeros(1), torch.zeros(1, 2), torch.zeros(1, 2), 1, 1)


def test_shadow_acceptance_is_drawn_from_the_request_s_process(process: Process) -> None:
    process.declared = Declared(0.25)
    draw, batch = Draw(process), SimpleNamespace(reqs=[request(), request([1.0, 1.0]), request([0.0, 1.0])])
    result = SimpleNamespace(next_token_ids=torch.zeros(3))
    assert draw.shadow_accepts(shadow_acceptance.shadow_accepts, result, batch) == []  # no shadow draft of this round
    told = shadow_acceptance.ShadowDrafts(torch.zeros(3), {"a": 0, "c": 1})
    told.attach(result, ["b", "c", "a"])
    assert draw.shadow_accepts(shadow_acceptance.shadow_accepts, result, batch) == [1, 0]
    told.attach(result, ["a", "b", "d"])
    drawn = [draw.shadow_accepts(shadow_acceptance.shadow_accepts, result, batch) for _ in range(2000)]
    assert {len(one) for one in drawn} == {1}
    assert abs(sum(map(sum, drawn)) / 2000 - 0.25) < 0.05


def test_a_trace_is_summed_by_name_and_by_round() -> None:
    spans = [("a", 0.0, 4.0), ("b", 2.0, 4.0), ("a", 10.0, 2.0), ("b", 20.0, 1.0)]  # the first two at the same time
    events = [{"cat": "kernel", "name": name, "ts": at, "dur": length} for name, at, length in spans]
    events += [{"cat": "cpu_op", "name": "host", "ts": 0.0, "dur": 99.0}, {"name": "without a kind", "ts": 1}]
    found = round_profile.tally(events, 2, round_profile.DEVICE)
    assert (found["wall_us"], found["busy_us"], found["idle_us"], found["launches"]) == (10.5, 4.5, 6.0, 2.0)
    assert found["by_name"] == {"a": {"us": 3.0, "launches": 1.0}, "b": {"us": 2.5, "launches": 1.0}}
    with pytest.raises(RuntimeError, match="no event of gpu_memset"):
        round_profile.tally(events, 2, ("gpu_memset",))
    assert round_profile.between_marks(events, "b", round_profile.DEVICE) == [15.0]
    assert round_profile.between_marks(events, "host", round_profile.DEVICE) == []


def test_own_process_of_a_request() -> None:
    assert own(None) is None and own({"other": 1}) is None
    assert own({"acceptance": [0.5, 0.9]}) == Declared(0.5, 0.9)
    body = request_body(4, 10, own_p(seed=1, decay=0.9), False, "rid")
    declared = own(body["sampling_params"]["custom_params"])
    assert declared is not None and 0.2 <= declared.p <= 0.95 and declared.decay == 0.9
    assert body == request_body(4, 10, own_p(seed=1, decay=0.9), False, "rid")


# -- the counters -----------------------------------------------------------------------------------------------


def test_only_rounds_after_another_round_at_the_full_batch_are_steady(process: Process) -> None:
    times = iter([1.0, 1.5, 2.0, 9.0, 9.25, 9.5])
    process.declared, process.full_batch = Declared(0.5), 2
    meter = Meter(process, clock=lambda: next(times))
    drafted, plain = SimpleNamespace(speculative_num_draft_tokens=2), SimpleNamespace(speculative_num_draft_tokens=None)
    before = process.read()
    meter.count([request()] * 2, 3, drafted)  # nothing before it
    meter.count([request()] * 2, 4, drafted)  # steady: 0.5 s
    meter.count([request()], 1, plain)  # another batch size
    meter.prefill()
    meter.count([request()] * 2, 2, plain)  # after a prefill
    meter.count([request()] * 2, 2, plain)  # steady: 0.25 s
    meter.count([request([1.0, 1.0]), request()], 3, drafted)  # steady: 0.25 s
    counted = process.read() - before
    assert (counted.rounds, counted.requests, counted.tokens, counted.switches) == (6, 11, 15, 2)
    assert (counted.steady_rounds, counted.steady_seconds, counted.steady_tokens) == (3, 1.0, 9)
    assert counted.steady_expected == pytest.approx(2 * 1.5 + 2 * 1 + (2.0 + 1.5))
    assert counted.depths() == {"0": 3, "1": 3} and counted.batch_size == 2
    assert process.round_seconds(before) == [0.5, 0.25, 0.25]


def test_busy_rounds_follow_another_one_with_enough_requests(process: Process) -> None:
    times = iter([1.0, 1.5, 2.0, 2.5, 9.0, 9.25])
    process.least_batch = 3
    meter = Meter(process, clock=lambda: next(times), observed=True)
    drafted = SimpleNamespace(speculative_num_draft_tokens=4)
    meter.count([request()] * 4, 9, drafted)  # nothing before it
    meter.count([request()] * 3, 7, drafted)  # busy: 0.5 s
    meter.count([request()] * 2, 5, drafted)  # too few
    meter.count([request()] * 4, 8, drafted)  # too few before it
    meter.prefill()
    meter.count([request()] * 4, 8, drafted)  # after a prefill
    meter.count([request()] * 4, 11, drafted)  # busy: 0.25 s
    counted = process.read()
    assert (counted.busy_rounds, counted.busy_seconds) == (2, 0.75)
    assert (counted.busy_tokens, counted.busy_requests) == (18, 7)
    assert counted.expected == counted.tokens == 48


def test_round_times_are_the_latest_ones(process: Process) -> None:
    before = process.read()
    for index in range(RING + 5):
        process.count_steady(float(index), 1, 1.0)
    times = process.round_seconds(before)
    assert len(times) == RING and times[0] == 5 and times[-1] == RING + 4


def test_a_file_of_another_shape_is_refused(tmp_path: Path) -> None:
    (tmp_path / "p").write_bytes(b"12345678")
    with pytest.raises(ValueError, match="not an acceptance file"):
        Process(tmp_path / "p")


# -- the arithmetic ---------------------------------------------------------------------------------------------


def test_percentiles_are_numpys() -> None:
    values = [random.Random(5).random() for _ in range(101)]
    for percent in (0, 50, 95, 99, 100):
        assert percentile(values, percent) == pytest.approx(float(np.percentile(values, percent)))
    assert percentiles([0.002]) == {"p50_ms": 2, "p95_ms": 2, "p99_ms": 2, "mean_ms": 2, "count": 1}
    assert percentiles([]) is None
    with pytest.raises(ValueError, match="no values"):
        percentile([], 50)


def test_ratios() -> None:
    assert spread([90, 100, 110]) == pytest.approx(0.2) and spread([5]) == 0
    assert shares({"a": 3, "b": 1}, {"a": 2, "c": 1}) == [1.5]
    assert summed_up([0.5, 2.0]) == (1.0, 0.5)


def test_latencies_of_a_streamed_answer() -> None:
    answer = Answer(sent=1.0, chunks=[(1.5, 1), (1.6, 3), (2.0, 4)])
    assert answer.time_to_first_token == 0.5 and answer.latency == 1.0
    assert list(answer.inter_token_latencies()) == pytest.approx([0.05, 0.05, 0.4])


def test_turns_are_mirrored() -> None:
    assert list(in_turn("abc", 0)) == ["a", "b", "c"] and list(in_turn("abc", 1)) == ["c", "b", "a"]  # type: ignore[arg-type]


def test_tiers_from_the_log() -> None:
    line = "[x] Built adaptive runtime state steps={}: elapsed={}s, mem={}GB\n"
    log = line.format(0, "3.40", "0.31") + "something else\n" + line.format(7, "4.95", "1.10")
    assert tiers_built(log) == [{"steps": 0, "seconds": 3.4, "gb": 0.31}, {"steps": 7, "seconds": 4.95, "gb": 1.1}]


# -- servers ----------------------------------------------------------------------------------------------------


def test_stock_policies_load_nothing_of_ours(tmp_path: Path) -> None:
    host = hosts.gpu(Path("/models"), 64, kv_tokens=160_000)
    for name, policy in POLICIES.items():
        plugins = host.environment(policy)["SGLANG_PLUGINS"].split(",")
        command = host.command(policy, tmp_path, tmp_path / "kept", 30000)
        assert ("sglang_adaptive" in plugins) == name.startswith(("ema", "throughput")), name
        assert ("--speculative-algorithm" in command) == (name != "none"), name
    assert "--speculative-adaptive-config" not in host.command(POLICIES["sglang-ema"], tmp_path, tmp_path, 1)


def test_only_the_saved_policy_sees_the_kept_profile(tmp_path: Path) -> None:
    def profile_dir(name: str) -> str:
        path = POLICIES[name].files(tmp_path, tmp_path / "kept")[1]
        return str(json.loads(Path(path).read_text())["throughput"]["profile_dir"])

    assert profile_dir("throughput-saved") == str(tmp_path / "kept")
    assert profile_dir("throughput") != str(tmp_path / "kept")


def test_held_depths_stand_for_static_servers() -> None:
    servers: Any = [SimpleNamespace(name=name, policy=POLICIES[name]) for name in ("none", "sglang-ema", "throughput")]
    found = contenders(servers, [0, 3])
    assert [one.name for one in found] == ["none", "static-0", "static-3", "sglang-ema", "throughput"]
    assert [one.name for one in found if one.knows_p] == ["static-3", "sglang-ema", "throughput"]
    assert found[1].server is servers[2]


def test_bad_usage_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["matrix", "--policies", "nobody", "--output", str(tmp_path)]) == 2
    assert main(["matrix", "--workloads", "rain", "--output", str(tmp_path)]) == 2
    assert main(["drive", "--policies", "none", "--output", str(tmp_path)]) == 2
    assert main(["compare", str(tmp_path / "missing.json")]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 4 and "nobody is none of none, static-1" in lines[0] and "cannot be read" in lines[3]


class Broken(hosts.Host):
    """Its servers end while they start."""

    def command(self, policy: Policy, folder: Path, profiles: Path, port: int) -> list[str]:
        return [sys.executable, "-c", f"print('{policy.name}: no such model'); raise SystemExit(3)"]


def test_a_server_that_does_not_start_keeps_no_other_from_its_turn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    groups = ((POLICIES["none"],), (POLICIES["throughput"],))
    matrix = Matrix(groups, ("cells",), (), Plan(), Broken("t", "d", 4), tmp_path, tmp_path, 60.0, 30.0)
    assert run(matrix, []) == 1
    error = capsys.readouterr().err
    assert "none ended while it started:\nnone: no such model" in error
    assert "throughput ended while it started:\nthroughput: no such model" in error
    assert run(dataclasses.replace(matrix, budget=1.0), []) == 1 and "no time left" in capsys.readouterr().out


# -- results ----------------------------------------------------------------------------------------------------

CASES = [(1, 0.3), (1, 0.0), (8, 0.3)]
RATES = {"static-1": [100.0, 80.0, 500.0], "static-3": [90.0, 50.0, 800.0], "throughput": [99.0, 99.0, 780.0]}


def one_pass(rate: float) -> dict[str, Any]:
    return {"tokens_per_second": rate, "rounds": 10, "seconds": 1.0, "accept_length": 2.0}


def document(rows: list[dict[str, Any]], startup: float = 12.0) -> dict[str, Any]:
    server = {"startup": {"tiers": [1], "tiers_total": {"seconds": startup, "gb": 0.6}}, "adaptive": {}}
    return {
        "schema": SCHEMA, "name": "x", "acceptance": SIMULATED, "provenance": {"gpu": "GPU", "cpu": "CPU"},
        "plan": {}, "servers": {"throughput": server}, "notes": [], "rows": rows,
    }  # fmt: skip


def measured() -> list[dict[str, Any]]:
    rows = [
        row("cells", name, {"batch_size": batch, "p": p}, [one_pass(rate)])
        for name, of in RATES.items()
        for (batch, p), rate in zip(CASES, of, strict=True)
    ]
    rows += [
        row("cells", "none", {"batch_size": batch, "p": None}, [one_pass(rate)]) for batch, rate in ((1, 100), (8, 700))
    ]
    rows += [row("cells", "static-0", {"batch_size": 1, "p": None}, [one_pass(99.0)])]
    for name, rate in (("static-1", 100.0), ("static-3", 110.0), ("sglang-ema", 80.0), ("throughput", 121.0)):
        rows.append(row("acceptance", name, {"batch_size": 1}, [one_pass(rate)]))
    return rows


def test_a_row_without_p_stands_for_every_p_of_its_batch() -> None:
    found = rates((one["contender"], one) for one in measured() if one["workload"] == "cells")
    assert sorted(found["none"].values()) == [100, 100, 700]
    best = best_static(found)
    assert sorted(best.values()) == [99, 100, 800]


def test_servers_in_turn_count_with_their_mean() -> None:
    turns = [row("cells", "none", {"batch_size": 1, "p": None}, [one_pass(rate)]) for rate in (100.0, 104.0)]
    assert rates(("none", one) for one in turns) == {"none": {(("batch_size", 1), ("p", None)): 102.0}}


def test_compare_prints_shares_of_the_best_static_depth(tmp_path: Path) -> None:
    path, other = tmp_path / "a.json", tmp_path / "b.json"
    path.write_text(json.dumps(document(measured())))
    other.write_text(json.dumps(document([one for one in measured() if one["contender"] == "throughput"])))
    lines = table([path], "cells").splitlines()
    assert lines[0] == "cells: tokens/s as a share of the case's best static depth"
    mean = next(line for line in lines if line.startswith("geometric mean of p > 0")).split()
    names = lines[1].split()[1:]
    expected = (0.99 * 0.975) ** 0.5
    assert float(mean[6 + names.index("throughput")]) == pytest.approx(expected, abs=5e-4)
    both = table([path, other], "acceptance")
    assert "throughput a" in both and "throughput b" in both and both.endswith(SIMULATED)


def test_arrivals_are_drawn_by_their_latency_and_what_was_cut_off_is_not(tmp_path: Path) -> None:
    taken: dict[tuple[str, float], tuple[float, ...]] = {
        ("static-3", 0.3): (1.5, 2.5), ("throughput", 0.3): (1.0, 2.0), ("static-3", 0.6): (3.0,),
        ("static-7", 0.3): (2.0, 3.0, 9.0),
    }  # fmt: skip
    rows = [
        row("open loop", name, {"share": share}, [{**one_pass(100.0), "latency": {"p50_ms": one}} for one in seconds])
        for (name, share), seconds in taken.items()
    ]
    assert [list(cases.values()) for cases in _latencies(rows).values()] == [[1.0], [0.75], [1.25]]
    assert [path.name for path in plot([document(rows)], tmp_path)] == ["open-loop.png"]


def test_summary_says_what_is_met(tmp_path: Path) -> None:
    found = {one.what: one for one in targets([document(measured())], "throughput")}
    assert found["cells against each cell's best static depth, worst"].value == pytest.approx(0.975)
    assert found["acceptance and load switching against the best single depth"].value == pytest.approx(1.1)
    assert found["acceptance and load switching against the best single depth"].met
    assert found["acceptance and load switching against SGLang EMA built-in"].value == pytest.approx(121 / 80)
    assert found["zero steps against no speculation, batch 1"].met
    assert found["worst cell against no speculation, p = 0 too"].value == pytest.approx(0.99)
    assert found["tiers at start-up, seconds"].met and not found["tiers at start-up, GB"].met
    assert found["switches an hour in steady load"].met is None
    text = summary([document(measured())])
    assert "MISSED" in text and "not measured" in text and SIMULATED in text


def test_the_best_single_depth_is_one_depth_for_acceptance_and_load() -> None:
    taken = {"static-1": (100.0, 100.0), "static-7": (120.0, 90.0), "throughput": (132.0, 99.0)}
    rows = [
        row(workload, name, case, [one_pass(rate)])
        for name, rates_of in taken.items()
        for workload, case, rate in zip(("acceptance", "load"), ({"batch_size": 1}, {"p": 0.7}), rates_of, strict=True)
    ]
    found = {one.what: one.value for one in targets([document(rows)], "throughput")}
    assert found["acceptance and load switching against the best single depth"] == pytest.approx(1.1)
    against_each = (132 / 120 * 99 / 100) ** 0.5
    assert found["acceptance and load switching against each case's best depth"] == pytest.approx(against_each)


def test_gigabytes_of_servers_that_started_together_do_not_count() -> None:
    alone, together = document([]), document([])
    together["servers"]["throughput"]["startup"] |= {"alone": False, "tiers_total": {"seconds": 14.0, "gb": 9.0}}
    found = {one.what: one.value for one in targets([alone, together], "throughput")}
    assert (found["tiers at start-up, seconds"], found["tiers at start-up, GB"]) == (13.0, 0.6)
    assert {one.what: one.met for one in targets([together], "throughput")}["tiers at start-up, GB"] is None


def test_a_server_that_was_left_running_is_found_as_it_was(tmp_path: Path) -> None:
    Process(tmp_path / "none.acceptance", create=True)
    left = Running(POLICIES["none"], tmp_path, 4711, ["serve"], "")
    left.start_seconds, left.alone, left.pid = 3.5, False, 99
    left.leave()
    found = attach(POLICIES["none"], tmp_path)
    assert (found.client.port, found.command, found.pid, found.scratch) == (4711, ["serve"], 99, None)
    found.log.write_text("")
    assert found.startup() == {
        "seconds": 3.5, "alone": False, "tiers": [], "tiers_total": {"seconds": 0, "gb": 0}
    }  # fmt: skip


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(schema=1), "schema: got 1; expected 2"),
        (lambda d: d.pop("rows"), "rows: got None; expected list"),
        (lambda d: d["rows"][0].update(tokens_per_second="fast"), r"rows\[0\].tokens_per_second: got 'fast'"),
    ],
)
def test_another_file_is_refused_by_key(tmp_path: Path, change: Any, message: str) -> None:
    content = document(measured())
    change(content)
    (tmp_path / "a.json").write_text(json.dumps(content))
    with pytest.raises(BadResult, match=message):
        read(tmp_path / "a.json")


def test_a_folder_without_results_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text("[]")
    with pytest.raises(BadResult, match="holds no result"):
        read_folder(tmp_path)


# -- two ranks, and shapes --------------------------------------------------------------------------------------


def test_ranks_that_ran_alike_and_ranks_that_did_not() -> None:
    alike = two_ranks.compare(["1 3", "1 3", "8 0"], ["1 3", "1 3"])  # one is a round ahead
    assert alike["identical"] and alike["rounds"] == 2 and alike["switches"] == 1
    assert alike["rounds_by_depth"] == {"0": 1, "3": 2}
    apart = two_ranks.compare(["1 3", "1 5"], ["1 3", "1 3"])
    assert not apart["identical"] and apart["first_unlike"] == {"round": 1, "ranks": ["1 5", "1 3"]}
    assert not two_ranks.compare(["1 3"] * 9, ["1 3"])["identical"]  # one has stopped


def test_every_shape_comes_with_a_draft_as_wide(tmp_path: Path) -> None:
    shapes.write(tmp_path)
    for name, target in shapes.TARGETS.items():
        written = json.loads((tmp_path / name / "config.json").read_text())
        draft = json.loads((tmp_path / f"{name}-eagle3" / "config.json").read_text())
        assert written == target
        assert draft["num_hidden_layers"] == 1 and draft["draft_vocab_size"] == 32000
        for shared in ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size"):
            assert draft[shared] == target[shared], (name, shared)


def test_only_adaptive_servers_end_at_a_late_kernel(tmp_path: Path) -> None:
    host = hosts.gpu(Path("/models"), 64, pair="llama70b", kv_tokens=160_000, strict_loads=True)
    strict = {name for name, policy in POLICIES.items() if hosts.STRICT_LOADS in host.environment(policy)}
    assert strict == {name for name, policy in POLICIES.items() if policy.ours}
    command = host.command(POLICIES["throughput"], tmp_path, tmp_path / "kept", 30000)
    assert "/models/llama70b" in command and "/models/llama70b-eagle3" in command


def test_a_server_s_folders_stay_out_of_results() -> None:
    told = {"profile": {"path": "/somewhere/run/throughput-learnt/a.json"}, "rounds": 3}
    assert results._without(Path("/somewhere/run"), told) == {
        "profile": {"path": "throughput-learnt/a.json"},
        "rounds": 3,
    }
    assert results._without(Path("/somewhere/run"), None) is None
