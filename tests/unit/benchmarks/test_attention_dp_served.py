"""What the benchmark of attention DP on two GPUs makes of logs, texts and rates."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from benchmarks.attention_dp.served import rates, round_log
from benchmarks.attention_dp.served.equality import LAYOUTS, REQUESTS, Judge, ask
from benchmarks.attention_dp.served.report import Report
from benchmarks.attention_dp.served.servers import Place

ROOT = Path(__file__).parents[3]


def test_ranks_that_ran_the_same_steps_are_identical() -> None:
    found = round_log.compare([[(8, 3), (8, 0), (0, 0)], [(1, 3), (0, 0), (4, 0), (4, 1)]])
    assert (found["identical"], found["rounds"], found["switches"]) == (True, 3, 1)
    assert found["rounds_by_depth"] == {"0": 2, "3": 1}
    assert (found["rounds_with_an_idle_rank"], found["rounds_with_four_times_the_requests"]) == (2, 1)
    assert found["largest_batch"] == 8


def test_ranks_that_differ_are_told_with_the_round() -> None:
    found = round_log.compare([[(8, 3), (8, 0)], [(1, 3), (1, 1)]])
    assert not found["identical"]
    assert found["first_unlike"] == {"round": 1, "ranks": [[8, 0], [1, 1]]}
    assert not round_log.compare([[(1, 3)] * 9, [(1, 3)]])["identical"]  # one of them stands still
    assert not round_log.compare([[], []])["identical"]


def test_logs_leave_out_a_line_that_is_half_written(tmp_path: Path) -> None:
    log = tmp_path / "rounds-of-rank-"
    Path(f"{log}0").write_text("12 3\n11 0\n1")
    assert round_log.logs(log) == [[(12, 3), (11, 0)], []]


def test_the_policy_is_compared_with_the_best_held_steps() -> None:
    names = {"static-0": (100.0, 110.0), "static-3": (200.0, 190.0), "policy": (194.0, 196.0), "none": (130.0,)}
    rows = [{"scene": "a", "contender": name, "tokens_per_second": rate} for name, two in names.items() for rate in two]
    found = rates.ratios(rows)["a"]
    assert found["best"] == "static-3"
    assert found["policy_over_best"] == pytest.approx(1.0)
    assert found["policy_over_none"] == pytest.approx(1.5)
    assert found["spread"] == pytest.approx((10 / 105 + 10 / 195 + 2 / 195) / 3)
    assert rates.best_held(rows, "a", 1) == ["static-3"] and rates.best_held(rows, "b", 2) == []


class Reference:
    """Answers as a server that gives every prompt the same text, and the likeliest of which is always that text."""

    def __init__(self) -> None:
        self.asked: list[tuple[int | None, int]] = []

    def post(self, path: str, body: dict) -> object:
        if "return_logprob" in body:
            tokens = body["input_ids"]
            gap = [0.0 if token == 7 else 5.0 for token in tokens]
            own = [(-gap[at], token, None) for at, token in enumerate(tokens)]
            return {"meta_info": {"input_token_logprobs": own, "input_top_logprobs": [[(0.0, 7, None)]] * len(tokens)}}
        self.asked.append((body["routed_dp_rank"], len(body["input_ids"])))
        return [{"output_ids": [7] * 48} for _ in body["input_ids"]]

    def generate(self, prompts: list[list[int]], new_tokens: int, **_: object) -> list[dict]:
        return [{"output_ids": [7] * new_tokens, "meta_info": {}} for _ in prompts]


def test_each_request_goes_to_its_rank() -> None:
    server = Reference()
    assert ask(server, [[1, 2]] * 16, "skewed") == [[7] * 48] * 16  # type: ignore[arg-type]
    assert sorted(server.asked) == [(0, 14), (1, 2)]


def test_a_text_with_unlikely_tokens_is_different() -> None:
    judge = Judge(Reference(), 4096)  # type: ignore[arg-type]
    equal = [[7] * 48 for _ in range(REQUESTS)]
    assert judge.judge({"how": "x", "layout": "balanced", "outputs": equal})["equal"] == REQUESTS
    wrong = [[7] * 40 + [9] * 8, *equal[1:]]
    found = judge.judge({"how": "x", "layout": "balanced", "outputs": wrong})
    assert (found["different"], found["tokens_over_bound"]) == (1, 8)
    assert "outputs" not in found


def test_a_report_is_well_only_when_every_phase_is(tmp_path: Path) -> None:
    report = Report(tmp_path, ["--output", str(tmp_path)], 0.0)
    report.add("equality", verdict="well", runs=[1])
    assert report.is_well()
    report.add("rates", error="Hung: no round")
    assert not report.is_well()
    assert json.loads((tmp_path / "rates.json").read_text())["error"] == "Hung: no round"
    assert str(tmp_path) not in (tmp_path / "equality.json").read_text()


@pytest.mark.parametrize("name", ["adaptive", "reference", "liar", "rated", "none"])
def test_every_server_has_two_ranks_of_attention_dp(tmp_path: Path, name: str) -> None:
    place = Place(tmp_path, cpu=False)
    server = place._checked(name) if name in ("adaptive", "reference") else place._simulated(name)
    assert "--enable-dp-attention" in server.command
    variables = getattr(server, "environment", None) or server._environment
    logged = round_log.ENTRY_POINT in variables["SGLANG_PLUGINS"]
    assert logged == (name in ("adaptive", "liar", "rated"))
    assert float(variables.get(round_log.LIE, 0)) == (3.0 if name == "liar" else 0.0)


def test_layouts_leave_a_rank_idle() -> None:
    used = {name: {rank(at) for at in range(REQUESTS)} for name, rank in LAYOUTS.items()}
    assert used == {"balanced": {0, 1}, "skewed": {0, 1}, "rank 1 idle": {0}, "rank 0 idle": {1}}


def test_the_script_for_a_remote_host_is_valid_bash() -> None:
    subprocess.run(["bash", "-n", ROOT / "benchmarks/attention_dp/served/gpu.sh"], check=True)
